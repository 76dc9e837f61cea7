// The end of a call of an invoker, and counters of copies.
#ifndef DAYFLY_RESULT_HPP
#define DAYFLY_RESULT_HPP

#include "error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

namespace dayfly {

// The end of a call, as passed to a callback. Valid during the callback only.
class result {
public:
    result(dfly_status status, const char *message, const void *output, std::size_t length)
        : status_(status), message_(message), output_(output), length_(length) {}

    bool ok() const noexcept { return status_ == DFLY_OK; }
    dfly_status status() const noexcept { return status_; }
    const char *message() const noexcept { return message_; }
    const void *data() const noexcept { return output_; }
    std::size_t bytes() const noexcept { return length_; }

    // Copies the output to `out` and returns its length in bytes. Throws the call's error, or DFLY_OUTPUT_OVERFLOW if
    // the output exceeds `capacity`.
    std::size_t copy_to(void *out, std::size_t capacity) const {
        if (!ok()) {
            throw error(status_, message_);
        }
        if (length_ > capacity) {
            throw error(DFLY_OUTPUT_OVERFLOW, "an output of " + std::to_string(length_) + " bytes in room for " +
                                                std::to_string(capacity));
        }
        if (length_ > 0) {
            std::memcpy(out, output_, length_);
        }
        return length_;
    }

private:
    dfly_status status_;
    const char *message_;
    const void *output_;
    std::size_t length_;
};

// Runs in the invoker's own thread, and must not throw.
using callback = std::function<void(const result &)>;

// Bytes of payloads that an invoker copied within this process.
struct copied_bytes {
    std::uint64_t input = 0;
    std::uint64_t output = 0;
};

} // namespace dayfly

#endif
