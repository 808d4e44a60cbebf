// What OpenSSL needs for TlsSession: contexts with what this protocol allows, the socket's side,
// and the question for a key. OpenSSL's own types stop here and in tls_session.cc.
#pragma once

struct ssl_st;

namespace phub::transport {

class TlsSession;

namespace tls {

// A session that reads and writes through `owner`, and asks it for keys. Owned by the caller; must
// not outlive `owner`. Any thread.
ssl_st* NewSession(bool is_client, TlsSession& owner);

}  // namespace tls
}  // namespace phub::transport
