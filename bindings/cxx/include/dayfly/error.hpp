// The exception of this library.
#ifndef DAYFLY_ERROR_HPP
#define DAYFLY_ERROR_HPP

#include <dayfly.h>

#include <stdexcept>
#include <string>

namespace dayfly {

// Thrown by every function that fails. `what()` is the message, `code()` is stable, `remedy()` states how to correct
// the error, and `retry()` whether to repeat the request.
class error : public std::runtime_error {
public:
    error(dfly_status code, const std::string &message) : std::runtime_error(message), code_(code) {}

    dfly_status code() const noexcept { return code_; }
    const char *name() const noexcept { return dfly_error_name(code_); }
    const char *remedy() const noexcept { return dfly_error_remedy(code_); }
    dfly_retry retry() const noexcept { return dfly_error_retry(code_); }

private:
    dfly_status code_;
};

namespace detail {

inline void check(dfly_status status) {
    if (status != DFLY_OK) {
        throw error(status, dfly_last_error_message());
    }
}

// Frees a handle with the C function for its type.
struct closer {
    void operator()(dfly_client *handle) const noexcept { dfly_client_free(handle); }
    void operator()(dfly_lease *handle) const noexcept { dfly_lease_free(handle); }
    void operator()(dfly_printed *handle) const noexcept { dfly_printed_free(handle); }
    void operator()(dfly_channel *handle) const noexcept { dfly_channel_free(handle); }
    void operator()(dfly_pool *handle) const noexcept { dfly_pool_free(handle); }
    void operator()(dfly_output *handle) const noexcept { dfly_output_free(handle); }
    void operator()(dfly_buffer *handle) const noexcept { dfly_buffer_free(handle); }
    void operator()(dfly_fleet *handle) const noexcept { dfly_fleet_free(handle); }
    void operator()(dfly_delegation *handle) const noexcept { dfly_delegation_free(handle); }
    void operator()(dfly_group *handle) const noexcept { dfly_group_free(handle); }
    void operator()(dfly_request *handle) const noexcept { dfly_request_free(handle); }
};

} // namespace detail
} // namespace dayfly

#endif
