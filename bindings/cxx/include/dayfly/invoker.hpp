// Calls on all workers of a lease, with futures or callbacks.
#ifndef DAYFLY_INVOKER_HPP
#define DAYFLY_INVOKER_HPP

#include "call_options.hpp"
#include "channel.hpp"
#include "fleet.hpp"
#include "future.hpp"
#include "result.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dayfly {

// Leases workers and distributes calls over them. Any thread may submit; no other thread may use the invoker during
// `allocate`, `use` or `deallocate`. The first submit starts one thread that progresses the calls and sleeps while there
// are none.
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
        shut_down();
        use(connected().lease(options), library, bytes);
    }
    // As `allocate`, on workers of many nodes, whose number follows the calls. Returns at once. The workers have no
    // numbers: `call_options::worker` and `::incarnation` are refused.
    void allocate(const std::string &library, const fleet_options &options, std::size_t bytes = 0) {
        shut_down();
        dfly_fleet_options raw = options.raw();
        size_slots(raw.pool, bytes);
        auto opened = std::make_unique<dayfly::fleet>(connected(), raw);
        code_ = opened->load_library(library);
        fleet_ = std::move(opened);
        pool_ = fleet_->pool();
        arenas_.push_back(std::make_shared<detail::arena>([pool = pool_](std::size_t length) {
            dfly_buffer *made = nullptr;
            detail::check(dfly_pool_buffer_alloc(pool, length, &made, nullptr));
            return made;
        }));
    }
    // As `allocate`, on workers that were delegated to this program.
    void use(const delegation &part, const std::string &library, std::size_t bytes = 0) {
        shut_down();
        use(part.open(), library, bytes);
    }
    // Delegates some of the workers for at most `duration`. Waits up to `limit` until the calls on them have ended.
    dayfly::delegation delegate(std::uint32_t workers, std::chrono::milliseconds duration,
                                std::chrono::milliseconds limit = std::chrono::minutes(1)) {
        check_allocated();
        dfly_delegation *handle = nullptr;
        const dfly_lease *users = lease_ ? lease_->get() : nullptr;
        detail::check(dfly_pool_delegate(pool_, workers, static_cast<std::uint64_t>(duration.count()), users,
                                         static_cast<std::uint64_t>(limit.count()), &handle));
        return dayfly::delegation(handle);
    }
    // Revokes a delegation of this invoker, and uses its workers again.
    void take_back(const delegation &part) {
        check_allocated();
        detail::check(dfly_pool_take_back(pool_, part.get()));
    }
    void allocate(const std::string &library, const lease_options &options = {}) { allocate(library, 0, options); }
    // As `allocate`, without waiting. Calls with ordinary memory may be submitted at once: they are sent when the
    // workers are there, and fail with the error of the lease if there are none. Functions that need workers, such as
    // `allocator` and `call`, wait for them. The future returns the number of workers.
    future<std::uint32_t> start(const std::string &library, std::size_t bytes = 0, const lease_options &options = {}) {
        shut_down();
        auto state = std::make_shared<detail::future_state<std::uint32_t>>();
        starting_ = true;
        starter_ = std::thread([this, library, bytes, options, state] {
            std::exception_ptr failed;
            try {
                use(connected().lease(options), library, bytes);
            } catch (...) {
                failed = std::current_exception();
            }
            std::vector<std::function<void(std::exception_ptr)>> waiting;
            {
                std::lock_guard<std::mutex> lock(mutex_);
                waiting.swap(waiting_);
                failed_ = failed;
                starting_ = false;
            }
            changed_.notify_all();
            for (const auto &submission : waiting) {
                submission(failed);
            }
            detail::fulfil(*state, [&] {
                if (failed) {
                    std::rethrow_exception(failed);
                }
                return workers();
            });
        });
        return future<std::uint32_t>(state);
    }
    void allocate(const std::string &library, std::size_t bytes, dayfly::mode mode, std::uint32_t workers = 1) {
        lease_options options;
        options.mode = mode;
        options.workers = workers;
        allocate(library, bytes, options);
    }

    // Releases the workers. Calls that have not ended fail. Waits for `start`.
    void deallocate() { shut_down(); }

    // Returns an allocator for inputs and outputs, also for std::vector. All its memory is of one worker, to and from
    // which it travels without a copy; each call of this function takes the next worker.
    template <typename T> dayfly::allocator<T> allocator() const {
        check_allocated();
        return allocator<T>(static_cast<std::uint32_t>(next_arena_++ % arenas_.size()));
    }
    // As above, for worker number `worker`, counted from 0.
    template <typename T> dayfly::allocator<T> allocator(std::uint32_t worker) const {
        check_allocated();
        if (worker >= arenas_.size()) {
            throw error(DFLY_INVALID_REQUEST, "this invoker has " + std::to_string(arenas_.size()) + " workers");
        }
        return dayfly::allocator<T>(arenas_[worker]);
    }

    // Sets the form of a function before its first call. The default is `form::plain`.
    void declare(const std::string &name, form kind) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            declared_[name] = kind;
            if (starting_) {
                return;
            }
        }
        id_of(name);
    }

    // Calls a function on `count` elements. The future returns the number of elements of `out` that were written. The
    // function reads and writes both buffers in place: payloads larger than a slot are not copied if both buffers are
    // from one allocator. Until the future is ready, `in` must not be written and `out` not be used. A call that was
    // not executed because its worker died is retried on another worker, with copies.
    template <typename In, typename Out>
    future<std::size_t> submit(const std::string &name, const buffer<In> &in, std::size_t count, buffer<Out> &out,
                               const call_options &options = {}) {
        return submit_into<Out>(name, in.get(), bytes_of<In>(count, in.size()), out.get(), options);
    }
    template <typename In, typename Out>
    future<std::size_t> submit(const std::string &name, const std::vector<In, dayfly::allocator<In>> &in,
                               std::vector<Out, dayfly::allocator<Out>> &out, const call_options &options = {}) {
        return submit_into<Out>(name, handle_of(in), in.size() * sizeof(In), handle_of(out), options);
    }
    // As above, with other memory, which is copied. `in` may be reused at once, `out` when the future is ready.
    template <typename In, typename Out, typename A, typename B>
    future<std::size_t> submit(const std::string &name, const std::vector<In, A> &in, std::vector<Out, B> &out,
                               const call_options &options = {}) {
        return submit<Out>(name, in.data(), in.size() * sizeof(In), out.data(), out.size() * sizeof(Out), options);
    }
    // As above. Sizes and the result are in bytes, unless `Out` is given.
    template <typename Out = char>
    future<std::size_t> submit(const std::string &name, const void *in, std::size_t bytes, void *out,
                               std::size_t capacity, const call_options &options = {}) {
        auto state = std::make_shared<detail::future_state<std::size_t>>();
        submit(
            name, in, bytes,
            [this, state, out, capacity](const result &ended) {
                detail::fulfil(*state, [&] {
                    const std::size_t length = ended.copy_to(out, capacity);
                    copied_output_ += length;
                    return length / sizeof(Out);
                });
            },
            options);
        return future<std::size_t>(state);
    }

    // Calls a function, and runs `told` in the invoker's thread when the call has ended. `in` may be reused at once.
    void submit(const std::string &name, const void *in, std::size_t bytes, callback told,
                const call_options &options = {}) {
        if (postpone(name, in, bytes, told, options)) {
            return;
        }
        const std::uint32_t function = id_of(name);
        const dfly_call_options raw = options.raw();
        send(std::move(told), [&](pending *task) {
            return dfly_pool_submit_callback(pool_, function, in, bytes, &raw, on_end, task, nullptr);
        });
    }
    // As above, without a copy of the input, which must not be written until the call has ended.
    template <typename In>
    void submit(const std::string &name, const buffer<In> &in, std::size_t count, callback told,
                const call_options &options = {}) {
        submit_handles(name, in.get(), bytes_of<In>(count, in.size()), nullptr, std::move(told), options);
    }

    // Calls a function and waits in this thread, which is faster than a future because no other thread must wake.
    // Returns the length of the output in bytes.
    std::size_t call(const std::string &name, const void *in, std::size_t bytes, void *out, std::size_t capacity,
                     const call_options &options = {}) {
        const std::uint32_t function = id_of(name);
        const dfly_call_options raw = options.raw();
        std::size_t length = 0;
        detail::check(dfly_pool_call(pool_, function, in, bytes, &raw, out, capacity, &length));
        return length;
    }
    // As above, in place, as `submit` of buffers. Returns the number of elements of `out` that were written.
    template <typename In, typename Out>
    std::size_t call(const std::string &name, const buffer<In> &in, std::size_t count, buffer<Out> &out,
                     const call_options &options = {}) {
        const std::uint32_t function = id_of(name);
        const dfly_call_options raw = options.raw();
        std::uint64_t number = 0;
        detail::check(dfly_pool_submit_into(pool_, function, in.get(), bytes_of<In>(count, in.size()), out.get(),
                                            &raw, nullptr, nullptr, &number));
        dfly_output *output = nullptr;
        detail::check(dfly_pool_wait(pool_, number, -1, &output));
        const std::unique_ptr<dfly_output, detail::closer> held(output);
        return dfly_output_length(output) / sizeof(Out);
    }

    // Returns how many times a worker has been started, for `call_options::incarnation`; 0 while it is replaced.
    std::uint32_t incarnation(std::uint32_t worker) const {
        check_allocated();
        return dfly_pool_incarnation(pool_, worker);
    }
    // Returns how many bytes of payloads were copied since `allocate`.
    copied_bytes copied() const {
        check_allocated();
        copied_bytes copied;
        detail::check(dfly_pool_copied(pool_, &copied.input, &copied.output));
        copied.output += copied_output_;
        return copied;
    }
    // Returns the number of workers at the moment; 0 before there are any.
    std::uint32_t workers() const {
        std::lock_guard<std::mutex> lock(mutex_);
        const std::uint32_t leased = !starting_ && lease_ ? lease_->workers() : 0;
        return fleet_ ? fleet_->workers() : leased;
    }
    // Workers that take calls, now or after their repair.
    std::uint32_t remaining() const noexcept { return pool_ ? std::uint32_t(dfly_pool_remaining_workers(pool_)) : 0; }

private:
    client &connected() {
        if (!client_) {
            client_ = std::make_unique<client>();
        }
        return *client_;
    }

    void use(lease leased, const std::string &library, std::size_t bytes) {
        code_ = leased.load_library(library);
        dfly_pool_options pool;
        detail::check(dfly_pool_options_init(&pool));
        size_slots(pool, bytes);
        dfly_pool *handle = nullptr;
        detail::check(dfly_pool_open(leased.get(), &pool, &handle));
        owned_pool_.reset(handle);
        pool_ = handle;
        lease_ = std::make_unique<lease>(std::move(leased));
        for (std::uint32_t worker = 0; worker < lease_->workers(); worker++) {
            arenas_.push_back(std::make_shared<detail::arena>([handle, worker](std::size_t length) {
                dfly_buffer *made = nullptr;
                detail::check(dfly_pool_buffer_alloc_for(handle, worker, length, &made));
                return made;
            }));
        }
    }

    static void size_slots(dfly_pool_options &pool, std::size_t bytes) {
        if (bytes + 16 > pool.channel.stride_bytes && bytes <= 4096) {
            pool.channel.stride_bytes = static_cast<std::uint32_t>((bytes + 16 + 127) / 128 * 128);
        }
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

    // Returns the buffer of a vector; none if the vector is empty.
    template <typename T> static dfly_buffer *handle_of(const std::vector<T, dayfly::allocator<T>> &of) {
        return of.empty() ? nullptr : of.get_allocator().arena()->find(of.data(), of.size() * sizeof(T));
    }

    template <typename Out>
    future<std::size_t> submit_into(const std::string &name, dfly_buffer *in, std::size_t bytes, dfly_buffer *out,
                                    const call_options &options) {
        auto state = std::make_shared<detail::future_state<std::size_t>>();
        submit_handles(
            name, in, bytes, out,
            [state](const result &ended) {
                detail::fulfil(*state, [&] {
                    if (!ended.ok()) {
                        throw error(ended.status(), ended.message());
                    }
                    return ended.bytes() / sizeof(Out);
                });
            },
            options);
        return future<std::size_t>(state);
    }

    void submit_handles(const std::string &name, dfly_buffer *in, std::size_t bytes, dfly_buffer *out, callback told,
                        const call_options &options) {
        const std::uint32_t function = id_of(name);
        const dfly_call_options raw = options.raw();
        send(std::move(told), [&](pending *task) {
            return dfly_pool_submit_into(pool_, function, in, bytes, out, &raw, on_end, task, nullptr);
        });
    }

    // Submits a call whose end runs `told`.
    template <typename Submit> void send(callback told, Submit submit) {
        auto task = std::make_unique<pending>(pending{this, std::move(told)});
        count_up();
        const dfly_status status = submit(task.get());
        if (status != DFLY_OK) {
            count_down();
            detail::check(status);
        }
        static_cast<void>(task.release()); // on_end owns it now
    }

    // Keeps a call until the workers are there. Returns false if none are awaited.
    bool postpone(const std::string &name, const void *in, std::size_t bytes, const callback &told,
                  const call_options &options) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!starting_) {
            return false;
        }
        const char *start = static_cast<const char *>(in);
        std::vector<char> input(start, start + bytes);
        waiting_.push_back([this, name, input = std::move(input), told, options](std::exception_ptr failed) {
            try {
                if (failed) {
                    std::rethrow_exception(failed);
                }
                submit(name, input.data(), input.size(), told, options);
            } catch (const error &reason) {
                told(result(reason.code(), reason.what(), nullptr, 0));
            } catch (const std::exception &reason) {
                told(result(DFLY_INTERNAL, reason.what(), nullptr, 0));
            }
        });
        return true;
    }

    void check_allocated() const {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            changed_.wait(lock, [this] { return !starting_; });
            if (failed_) {
                std::rethrow_exception(failed_);
            }
        }
        if (!pool_) {
            throw error(DFLY_INVALID_REQUEST, "the invoker has no workers: call allocate first");
        }
    }

    std::uint32_t id_of(const std::string &name) {
        check_allocated();
        std::lock_guard<std::mutex> lock(mutex_);
        const auto known = functions_.find(name);
        if (known != functions_.end()) {
            return known->second;
        }
        const auto declared = declared_.find(name);
        const auto kind = static_cast<std::uint32_t>(declared == declared_.end() ? form::plain : declared->second);
        std::uint32_t id = 0;
        detail::check(dfly_pool_function(pool_, &code_, name.c_str(), kind, &id));
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
            static_cast<void>(dfly_pool_drive(pool_, 50, nullptr));
            lock.lock();
        }
    }

    void shut_down() {
        const auto own = std::this_thread::get_id();
        if (own == driver_.get_id() || own == starter_.get_id()) {
            throw error(DFLY_INVALID_REQUEST, "a callback or continuation cannot deallocate its invoker");
        }
        shut();
    }

    void shut() noexcept {
        if (starter_.joinable()) {
            starter_.join();
        }
        for (const auto &arena : arenas_) {
            arena->close();
        }
        arenas_.clear();
        if (driver_.joinable()) {
            {
                std::lock_guard<std::mutex> lock(mutex_);
                stopping_ = true;
            }
            // Running calls end with the lease, and the driver runs their callbacks.
            static_cast<void>(lease_ ? dfly_lease_release(lease_->get()) : dfly_fleet_close(fleet_->get()));
            changed_.notify_all();
            driver_.join();
        }
        pool_ = nullptr;
        owned_pool_.reset(); // runs the remaining callbacks
        fleet_.reset();
        lease_.reset();
        functions_.clear();
        declared_.clear();
        failed_ = nullptr;
        copied_output_ = 0;
        stopping_ = false;
    }

    std::unique_ptr<client> client_;
    std::unique_ptr<lease> lease_;
    std::unique_ptr<dayfly::fleet> fleet_; // in place of the lease
    dfly_code code_{};
    std::unique_ptr<dfly_pool, detail::closer> owned_pool_; // of the lease
    const dfly_pool *pool_ = nullptr;                       // of the lease or of the fleet
    std::vector<std::shared_ptr<detail::arena>> arenas_;    // one for each worker; one for a fleet
    mutable std::atomic<std::size_t> next_arena_{0};
    std::map<std::string, std::uint32_t> functions_;
    std::map<std::string, form> declared_;
    std::atomic<std::uint64_t> copied_output_{0};
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    std::thread starter_;
    std::vector<std::function<void(std::exception_ptr)>> waiting_; // calls that wait for `start`
    std::exception_ptr failed_;                                    // why `start` failed
    bool starting_ = false;
    std::thread driver_;
    std::size_t running_ = 0;
    bool stopping_ = false;
};

} // namespace dayfly

#endif
