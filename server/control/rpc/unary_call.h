// Unary calls that go straight to the method that has their name, of the part of Control that is
// given. Included by the services, in whose classes it stands.
#pragma once

#include "server/control/rpc/service.h"

#define PHUB_UNARY(part, Service, Method, Response)                                            \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                       \
                                   const v1::Method##Request* request, v1::Response* response) \
      override {                                                                               \
    return Serve(shared_, context, "phub.v1." #Service "/" #Method, request, response,         \
                 [](Control& control, const Caller&, const auto& scoped, auto answer) {        \
                   control.part().Method(scoped, std::move(answer));                           \
                 });                                                                           \
  }
