// Memory that workers access in place: typed buffers, and an allocator for std::vector.
#ifndef DAYFLY_MEMORY_HPP
#define DAYFLY_MEMORY_HPP

#include "error.hpp"

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace dayfly {

// `size()` elements in memory of a channel or invoker, aligned to 128 bytes. A buffer may outlive both.
template <typename T> class buffer {
    static_assert(std::is_trivially_copyable<T>::value, "only plain data can be shared with another process");

public:
    using value_type = T;

    buffer() = default;
    buffer(dfly_buffer *handle, std::size_t size)
        : handle_(handle), data_(static_cast<T *>(dfly_buffer_data(handle))), size_(size) {}
    buffer(buffer &&other) noexcept
        : handle_(std::move(other.handle_)), data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)) {}
    buffer &operator=(buffer &&other) noexcept {
        handle_ = std::move(other.handle_);
        data_ = std::exchange(other.data_, nullptr);
        size_ = std::exchange(other.size_, 0);
        return *this;
    }

    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t bytes() const noexcept { return size_ * sizeof(T); }
    T &operator[](std::size_t index) noexcept { return data_[index]; }
    const T &operator[](std::size_t index) const noexcept { return data_[index]; }
    T *begin() noexcept { return data_; }
    T *end() noexcept { return data_ + size_; }
    const T *begin() const noexcept { return data_; }
    const T *end() const noexcept { return data_ + size_; }

    dfly_buffer *get() const noexcept { return handle_.get(); }
    dfly_buffer *release() noexcept {
        data_ = nullptr;
        size_ = 0;
        return handle_.release();
    }

private:
    std::unique_ptr<dfly_buffer, detail::closer> handle_;
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

namespace detail {

// Finds the buffer that owns an address, because containers know only addresses.
class arena {
public:
    explicit arena(std::function<dfly_buffer *(std::size_t)> make) : make_(std::move(make)) {}
    arena(const arena &) = delete;
    arena &operator=(const arena &) = delete;

    dfly_buffer *make(std::size_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!make_) {
            throw error(DFLY_LEASE_ENDED, "the channel or invoker of this allocator is closed");
        }
        return make_(bytes);
    }

    void *allocate(std::size_t bytes) {
        std::unique_ptr<dfly_buffer, closer> made(make(bytes));
        void *start = dfly_buffer_data(made.get());
        std::lock_guard<std::mutex> lock(mutex_);
        known_.emplace(start, std::move(made));
        return start;
    }

    void deallocate(void *start) noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        known_.erase(start);
    }

    // Returns the buffer that starts at `start`, with its length set to `bytes`.
    dfly_buffer *find(const void *start, std::size_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found = known_.find(start);
        if (found == known_.end()) {
            throw error(DFLY_INVALID_REQUEST, "this memory does not come from an allocator of this channel; a std::vector "
                                            "that is empty has none");
        }
        check(dfly_buffer_resize(found->second.get(), bytes));
        return found->second.get();
    }

    // Refuses further allocations. Existing buffers stay valid.
    void close() noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        make_ = nullptr;
    }

private:
    std::mutex mutex_;
    std::function<dfly_buffer *(std::size_t)> make_;
    std::unordered_map<const void *, std::unique_ptr<dfly_buffer, closer>> known_;
};

} // namespace detail

// Allocates memory of a channel or invoker. Workers access the elements of a `std::vector<T, dayfly::allocator<T>>` in
// place.
template <typename T> class allocator {
public:
    using value_type = T;
    // A vector that is moved or swapped keeps its memory.
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    explicit allocator(std::shared_ptr<detail::arena> arena) noexcept : arena_(std::move(arena)) {}
    template <typename U> allocator(const allocator<U> &other) noexcept : arena_(other.arena()) {}

    T *allocate(std::size_t count) { return static_cast<T *>(arena_->allocate(bytes(count))); }
    void deallocate(T *start, std::size_t) noexcept { arena_->deallocate(start); }

    // Allocates a buffer of `count` elements for an input or an output.
    buffer<T> input(std::size_t count) const { return buffer<T>(arena_->make(bytes(count)), count); }
    buffer<T> output(std::size_t count) const { return input(count); }

    const std::shared_ptr<detail::arena> &arena() const noexcept { return arena_; }

private:
    static std::size_t bytes(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        return count * sizeof(T);
    }

    std::shared_ptr<detail::arena> arena_;
};

template <typename T, typename U> bool operator==(const allocator<T> &a, const allocator<U> &b) noexcept {
    return a.arena() == b.arena();
}
template <typename T, typename U> bool operator!=(const allocator<T> &a, const allocator<U> &b) noexcept {
    return !(a == b);
}

} // namespace dayfly

#endif
