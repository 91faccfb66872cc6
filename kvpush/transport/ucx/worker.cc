#include "kvpush/transport/ucx/worker.h"

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/base/log.h"

namespace kvpush {

namespace {

struct Version {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  auto operator<=>(const Version&) const = default;
};

// Of those that were tried: docs/transports.md, "Faults of UCX 1.13".
constexpr Version kSound{1, 15, 0};

Version version() {
  Version version;
  ucp_get_version(&version.major, &version.minor, &version.release);
  return version;
}

// The name by which ucp_config_modify knows UCX_TCP_CONN_NB: 1.13 to 1.16 warn of its prefix, 1.17 to 1.22 of its lack.
const char* nonblocking_connect() {
  return version() < Version{1, 17, 0} ? "CONN_NB" : "TCP_CONN_NB";
}

}  // namespace

bool outlives_connecting_peers() {
  return version() >= kSound;
}

Result<std::unique_ptr<UcxContext>> UcxContext::open(const char* transports) {
  if (!outlives_connecting_peers()) {
    log(LogLevel::kWarning,
        fmt::format("UCX {} can end this process when a peer goes while the two connect: take {}.{} or newer",
                    ucp_get_version_string(), kSound.major, kSound.minor));
  }
  ucp_config_t* config = nullptr;
  if (ucp_config_read(nullptr, nullptr, &config) != UCS_OK) {
    return fail(ErrorCode::kUnavailable, "UCX cannot read its configuration");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  std::unique_ptr<UcxContext> self(new UcxContext);
  // Where packets to a peer are dropped without an answer, a connect that blocks holds the agent for minutes.
  const bool configured = ucp_config_modify(config, "TLS", transports) == UCS_OK &&
                          ucp_config_modify(config, nonblocking_connect(), "y") == UCS_OK;
  const ucs_status_t opened = configured ? ucp_init(&params, config, &self->context_) : UCS_ERR_INVALID_PARAM;
  ucp_config_release(config);
  if (!configured) return fail(ErrorCode::kUnavailable, "this version of UCX does not know a setting that is needed");
  if (opened != UCS_OK) return fail(ErrorCode::kUnavailable, "UCX finds no device for the transports allowed");
  return self;
}

UcxContext::~UcxContext() {
  if (context_ != nullptr) ucp_cleanup(context_);
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::open(const UcxContext& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  std::unique_ptr<UcxWorker> self(new UcxWorker);
  if (ucp_worker_create(context.get(), &params, &self->worker_) != UCS_OK ||
      ucp_worker_get_efd(self->worker_, &self->event_fd_) != UCS_OK) {
    return fail(ErrorCode::kUnavailable, "UCX cannot make a worker that can be waited for");
  }
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  if (ucp_worker_get_address(self->worker_, &address, &size) != UCS_OK) {
    return fail(ErrorCode::kUnavailable, "UCX does not tell its address");
  }
  const auto* first = reinterpret_cast<const std::byte*>(address);
  self->address_.assign(first, first + size);
  ucp_worker_release_address(self->worker_, address);
  return self;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
}

void UcxWorker::receive(unsigned number, ucp_am_recv_callback_t handler, void* argument) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = number;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = handler;
  param.arg = argument;
  KVPUSH_CHECK(ucp_worker_set_am_recv_handler(worker_, &param) == UCS_OK, "UCX refuses a message handler");
}

}  // namespace kvpush
