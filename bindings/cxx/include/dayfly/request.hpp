// Operations of a group in the background. Included by group.hpp.
#ifndef DAYFLY_REQUEST_HPP
#define DAYFLY_REQUEST_HPP

#include "reduction.hpp"

#include <memory>
#include <optional>
#include <utility>

namespace dayfly {

// An operation in the background. Its destructor cancels an operation that has not completed. One thread at a time may
// use it.
class request {
public:
    explicit request(dfly_request *handle, std::shared_ptr<detail::reduction_function> operation = nullptr)
        : operation_(std::move(operation)), handle_(handle) {}
    request(request &&other) noexcept = default;
    request &operator=(request &&other) noexcept {
        handle_ = std::move(other.handle_);
        operation_ = std::move(other.operation_);
        return *this;
    }

    // Waits until the operation completes. Returns the envelope of a receive.
    message wait() {
        message found;
        const dfly_status status = dfly_request_wait(get(), &found);
        rethrow();
        detail::check(status);
        return found;
    }

    // Returns the envelope if the operation has completed, without waiting.
    std::optional<message> test() {
        message found;
        bool over = false;
        const dfly_status status = dfly_request_test(get(), &found, &over);
        rethrow();
        detail::check(status);
        return over ? std::optional<message>(found) : std::nullopt;
    }

    dfly_request *get() const noexcept { return handle_.get(); }

private:
    void rethrow() const {
        if (operation_) {
            operation_->rethrow();
        }
    }

    // Destroyed after the request that calls it, also on assignment.
    std::shared_ptr<detail::reduction_function> operation_;
    std::unique_ptr<dfly_request, detail::closer> handle_;
};

} // namespace dayfly

#endif
