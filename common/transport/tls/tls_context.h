// OpenSSL's configuration for TlsSession: contexts with the options of this protocol, the I/O
// callbacks of the socket, and the lookup of keys. Only tls_context.cc and tls_session.cc use
// OpenSSL's own types.
#pragma once

struct ssl_st;

namespace phub::transport {

class TlsSession;

namespace tls {

// Creates a session that reads and writes through `owner` and gets keys from it. The caller owns
// it; it must not outlive `owner`. Any thread.
ssl_st* NewSession(bool is_client, TlsSession& owner);

}  // namespace tls
}  // namespace phub::transport
