// What is thrown.
#ifndef MAYFLY_ERROR_HPP
#define MAYFLY_ERROR_HPP

#include <mayfly.h>

#include <stdexcept>
#include <string>

namespace mayfly {

// Anything that failed: `what()` says what happened, `code()` is stable, `remedy()` says what to do.
class error : public std::runtime_error {
public:
    error(mf_status code, const std::string &message) : std::runtime_error(message), code_(code) {}

    mf_status code() const noexcept { return code_; }
    const char *name() const noexcept { return mf_error_name(code_); }
    const char *remedy() const noexcept { return mf_error_remedy(code_); }
    mf_retry retry() const noexcept { return mf_error_retry(code_); }

private:
    mf_status code_;
};

namespace detail {

inline void check(mf_status status) {
    if (status != MF_OK) {
        throw error(status, mf_last_error_message());
    }
}

// Ends a handle with the C function for it.
struct closer {
    void operator()(mf_client *handle) const noexcept { mf_client_free(handle); }
    void operator()(mf_lease *handle) const noexcept { mf_lease_free(handle); }
    void operator()(mf_printed *handle) const noexcept { mf_printed_free(handle); }
    void operator()(mf_channel *handle) const noexcept { mf_channel_free(handle); }
    void operator()(mf_pool *handle) const noexcept { mf_pool_free(handle); }
    void operator()(mf_buffer *handle) const noexcept { mf_buffer_free(handle); }
    void operator()(mf_delegation *handle) const noexcept { mf_delegation_free(handle); }
    void operator()(mf_group *handle) const noexcept { mf_group_free(handle); }
    void operator()(mf_request *handle) const noexcept { mf_request_free(handle); }
};

} // namespace detail
} // namespace mayfly

#endif
