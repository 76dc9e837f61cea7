// Calls on all workers of a lease, with futures or callbacks.
#ifndef DAYFLY_INVOKER_HPP
#define DAYFLY_INVOKER_HPP

#include "channel.hpp"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

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

// Leases workers and distributes calls over them. Any thread may submit; no other thread may use the invoker during
// `allocate`, `use` or `deallocate`. The first submit starts one thread that progresses the calls and sleeps while
// there are none.
class invoker {
public:
    static constexpr dayfly::mode ALWAYS_HOT = dayfly::mode::hot;
    static constexpr dayfly::mode ALWAYS_WARM = dayfly::mode::warm;

    invoker() = default;
    explicit invoker(client source) : client_(std::make_unique<client>(std::move(source))) {}
    invoker(const invoker &) = delete;
    invoker &operator=(const invoker &) = delete;
    ~invoker() { shut(); }

    // Leases workers and sends them a library. `bytes` is the expected size of a payload: slots fit payloads up to 4
    // KiB, and larger ones use bulk memory.
    void allocate(const std::string &library, std::size_t bytes, const lease_options &options = {}) {
        shut();
        if (!client_) {
            client_ = std::make_unique<client>();
        }
        use(client_->lease(options), library, bytes);
    }
    // As `allocate`, on workers that were delegated to this program.
    void use(const delegation &part, const std::string &library, std::size_t bytes = 0) {
        shut();
        use(part.open(), library, bytes);
    }

    // Delegates some of the workers for at most `duration`. Waits up to `limit` until the calls on them have ended.
    dayfly::delegation delegate(std::uint32_t workers, std::chrono::milliseconds duration,
                                std::chrono::milliseconds limit = std::chrono::minutes(1)) {
        check_allocated();
        dfly_delegation *handle = nullptr;
        detail::check(dfly_pool_delegate(pool_.get(), workers, static_cast<std::uint64_t>(duration.count()), lease_->get(),
                                       static_cast<std::uint64_t>(limit.count()), &handle));
        return dayfly::delegation(handle);
    }
    // Revokes a delegation of this invoker, and uses its workers again.
    void take_back(const delegation &part) {
        check_allocated();
        detail::check(dfly_pool_take_back(pool_.get(), part.get()));
    }
    void allocate(const std::string &library, const lease_options &options = {}) { allocate(library, 0, options); }
    void allocate(const std::string &library, std::size_t bytes, dayfly::mode mode, std::uint32_t workers = 1) {
        lease_options options;
        options.mode = mode;
        options.workers = workers;
        allocate(library, bytes, options);
    }

    // Releases the workers. Calls that have not ended fail.
    void deallocate() {
        if (driver_.joinable() && driver_.get_id() == std::this_thread::get_id()) {
            throw error(DFLY_INVALID_REQUEST, "a callback cannot deallocate its invoker");
        }
        shut();
    }

    // Returns an allocator for inputs and outputs, also for std::vector.
    template <typename T> dayfly::allocator<T> allocator() const {
        check_allocated();
        return dayfly::allocator<T>(arena_);
    }

    // Sets the form of a function before its first call. The default is `form::plain`.
    void declare(const std::string &name, form kind) { id_of(name, kind); }

    // Calls a function on `count` elements. The future returns the number of elements of `out` that were written. `in`
    // may be reused at once, `out` when the future is ready. A call that was not executed because its worker died is
    // retried on another worker.
    template <typename In, typename Out>
    std::future<std::size_t> submit(const std::string &name, const buffer<In> &in, std::size_t count, buffer<Out> &out) {
        return submit<Out>(name, in.data(), bytes_of<In>(count, in.size()), out.data(), out.bytes());
    }
    template <typename In, typename Out, typename A, typename B>
    std::future<std::size_t> submit(const std::string &name, const std::vector<In, A> &in, std::vector<Out, B> &out) {
        return submit<Out>(name, in.data(), in.size() * sizeof(In), out.data(), out.size() * sizeof(Out));
    }
    // As above, with any memory. Sizes and the result are in bytes, unless `Out` is given.
    template <typename Out = char>
    std::future<std::size_t> submit(const std::string &name, const void *in, std::size_t bytes, void *out,
                                    std::size_t capacity) {
        auto promise = std::make_shared<std::promise<std::size_t>>();
        std::future<std::size_t> future = promise->get_future();
        submit(name, in, bytes, [promise, out, capacity](const result &ended) {
            try {
                promise->set_value(ended.copy_to(out, capacity) / sizeof(Out));
            } catch (...) {
                promise->set_exception(std::current_exception());
            }
        });
        return future;
    }

    // Calls a function, and runs `told` in the invoker's thread when the call has ended.
    void submit(const std::string &name, const void *in, std::size_t bytes, callback told) {
        const std::uint32_t function = id_of(name, form::plain);
        auto task = std::make_unique<pending>(pending{this, std::move(told)});
        count_up();
        const dfly_status status = dfly_pool_submit_callback(pool_.get(), function, in, bytes, nullptr, on_end, task.get(),
                                                         nullptr);
        if (status != DFLY_OK) {
            count_down();
            detail::check(status);
        }
        static_cast<void>(task.release()); // on_end owns it now
    }
    template <typename In>
    void submit(const std::string &name, const buffer<In> &in, std::size_t count, callback told) {
        submit(name, in.data(), bytes_of<In>(count, in.size()), std::move(told));
    }

    // Calls a function and waits in this thread, which is faster than a future because no other thread must wake.
    // Returns the length of the output in bytes.
    std::size_t call(const std::string &name, const void *in, std::size_t bytes, void *out, std::size_t capacity) {
        const std::uint32_t function = id_of(name, form::plain);
        std::size_t length = 0;
        detail::check(dfly_pool_call(pool_.get(), function, in, bytes, nullptr, out, capacity, &length));
        return length;
    }

    std::uint32_t workers() const noexcept { return lease_ ? lease_->workers() : 0; }
    // Workers that take calls, now or after their repair.
    std::uint32_t remaining() const noexcept {
        return pool_ ? static_cast<std::uint32_t>(dfly_pool_remaining_workers(pool_.get())) : 0;
    }

private:
    void use(lease leased, const std::string &library, std::size_t bytes) {
        lease_ = std::make_unique<lease>(std::move(leased));
        code_ = lease_->load_library(library);
        dfly_pool_options pool;
        detail::check(dfly_pool_options_init(&pool));
        if (bytes + 16 > pool.channel.stride_bytes && bytes <= 4096) {
            pool.channel.stride_bytes = static_cast<std::uint32_t>((bytes + 16 + 127) / 128 * 128);
        }
        dfly_pool *handle = nullptr;
        detail::check(dfly_pool_open(lease_->get(), &pool, &handle));
        pool_.reset(handle);
        arena_ = std::make_shared<detail::arena>([handle](std::size_t length) {
            dfly_buffer *made = nullptr;
            detail::check(dfly_pool_buffer_alloc(handle, length, &made, nullptr));
            return made;
        });
    }

    struct pending {
        invoker *owner;
        callback told;
    };

    static void on_end(void *user, dfly_status status, const char *message, const void *output, std::size_t length) {
        const std::unique_ptr<pending> task(static_cast<pending *>(user));
        task->told(result(status, message, output, length));
        task->owner->count_down();
    }

    template <typename In> static std::size_t bytes_of(std::size_t count, std::size_t size) {
        if (count > size) {
            throw error(DFLY_INVALID_REQUEST, "more elements than the input buffer has");
        }
        return count * sizeof(In);
    }

    void check_allocated() const {
        if (!pool_) {
            throw error(DFLY_INVALID_REQUEST, "the invoker has no workers: call allocate first");
        }
    }

    std::uint32_t id_of(const std::string &name, form kind) {
        check_allocated();
        std::lock_guard<std::mutex> lock(mutex_);
        const auto known = functions_.find(name);
        if (known != functions_.end()) {
            return known->second;
        }
        std::uint32_t id = 0;
        detail::check(dfly_pool_function(pool_.get(), &code_, name.c_str(), static_cast<std::uint32_t>(kind), &id));
        functions_.emplace(name, id);
        return id;
    }

    void count_up() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!driver_.joinable()) {
            driver_ = std::thread([this] { drive(); });
        }
        if (++running_ == 1) {
            changed_.notify_all();
        }
    }

    void count_down() {
        std::lock_guard<std::mutex> lock(mutex_);
        --running_;
    }

    void drive() {
        std::chrono::steady_clock::time_point give_up = std::chrono::steady_clock::time_point::max();
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return running_ > 0 || stopping_; });
            const auto now = std::chrono::steady_clock::now();
            if (stopping_ && give_up == std::chrono::steady_clock::time_point::max()) {
                give_up = now + std::chrono::seconds(5);
            }
            if (stopping_ && (running_ == 0 || now >= give_up)) {
                return;
            }
            lock.unlock();
            // Errors of calls are passed to their callbacks. The pool itself returns none.
            static_cast<void>(dfly_pool_drive(pool_.get(), 50, nullptr));
            lock.lock();
        }
    }

    void shut() noexcept {
        if (arena_) {
            arena_->close();
            arena_.reset();
        }
        if (lease_ && driver_.joinable()) {
            {
                std::lock_guard<std::mutex> lock(mutex_);
                stopping_ = true;
            }
            // Running calls end with the lease, and the driver runs their callbacks.
            static_cast<void>(dfly_lease_release(lease_->get()));
            changed_.notify_all();
            driver_.join();
        }
        pool_.reset(); // runs the remaining callbacks
        lease_.reset();
        functions_.clear();
        stopping_ = false;
    }

    std::unique_ptr<client> client_;
    std::unique_ptr<lease> lease_;
    dfly_code code_{};
    std::unique_ptr<dfly_pool, detail::closer> pool_;
    std::shared_ptr<detail::arena> arena_;
    std::map<std::string, std::uint32_t> functions_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::thread driver_;
    std::size_t running_ = 0;
    bool stopping_ = false;
};

} // namespace dayfly

#endif
