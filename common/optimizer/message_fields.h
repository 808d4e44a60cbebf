// Converts hyper-parameters from and to the protobuf message phub.v1.HyperParameters. The message
// is a template parameter, because common/ must not include protobuf. Pure functions.
//
// Field i of kFields has number i + 1 in the message. A test compares the list with the .proto.
#pragma once

#include "common/optimizer/hyper_parameters.h"

namespace phub::optimizer {

template <typename Message>
HyperParameters FromMessage(const Message& message) {
  HyperParameters values;
  const auto& reflection = *message.GetReflection();
  int number = 0;
  for (const Field& field : kFields) {
    values.*field.value =
        reflection.GetDouble(message, Message::descriptor()->FindFieldByNumber(++number));
  }
  return values;
}

template <typename Message>
void ToMessage(const HyperParameters& values, Message& message) {
  const auto& reflection = *message.GetReflection();
  int number = 0;
  for (const Field& field : kFields) {
    reflection.SetDouble(&message, Message::descriptor()->FindFieldByNumber(++number),
                         values.*field.value);
  }
}

}  // namespace phub::optimizer
