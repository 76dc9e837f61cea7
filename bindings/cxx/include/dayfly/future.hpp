// Futures of calls: they can be waited for, continued, combined, and awaited by C++20 coroutines.
#ifndef DAYFLY_FUTURE_HPP
#define DAYFLY_FUTURE_HPP

#include "error.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_impl_coroutine) && __cpp_impl_coroutine >= 201902L
#define DAYFLY_HAS_COROUTINES 1
#include <coroutine>
#endif

namespace dayfly {

template <typename T> class future;

namespace detail {

struct nothing {};
template <typename T> using stored = std::conditional_t<std::is_void<T>::value, nothing, T>;

// A result that one thread sets and others wait for. At most one continuation.
template <typename T> class future_state {
public:
    void set(stored<T> value) {
        finish([&] { value_.emplace(std::move(value)); });
    }
    void fail(std::exception_ptr error) {
        finish([&] { error_ = std::move(error); });
    }

    bool is_ready() {
        std::lock_guard<std::mutex> lock(mutex_);
        return ready_;
    }
    template <typename Rep, typename Period> bool wait_for(std::chrono::duration<Rep, Period> limit) {
        std::unique_lock<std::mutex> lock(mutex_);
        return changed_.wait_for(lock, limit, [this] { return ready_; });
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return ready_; });
    }

    // Runs `next` once the result is there: now, or in the thread that sets it.
    void on_ready(std::function<void()> next) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!ready_) {
                next_ = std::move(next);
                return;
            }
        }
        next();
    }

    // Returns the result, once. It must be ready.
    stored<T> take() {
        if (error_) {
            std::rethrow_exception(error_);
        }
        return std::move(*value_);
    }
    std::exception_ptr failure() const { return error_; }

private:
    template <typename Store> void finish(Store store) {
        std::function<void()> next;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            store();
            ready_ = true;
            next.swap(next_);
        }
        changed_.notify_all();
        if (next) {
            next();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> next_;
    std::optional<stored<T>> value_;
    std::exception_ptr error_;
    bool ready_ = false;
};

// Sets the result of `state` to what `make` returns or throws.
template <typename R, typename Make> void fulfil(future_state<R> &state, Make &&make) {
    try {
        if constexpr (std::is_void<R>::value) {
            make();
            state.set(nothing{});
        } else {
            state.set(make());
        }
    } catch (...) {
        state.fail(std::current_exception());
    }
}

template <typename T, typename F> struct continuation {
    using type = std::invoke_result_t<F, T>;
};
template <typename F> struct continuation<void, F> {
    using type = std::invoke_result_t<F>;
};

// The type of the value that a continuation leads to: a continuation may return a future.
template <typename R> struct final_value {
    using type = R;
    static constexpr bool is_future = false;
};
template <typename R> struct final_value<future<R>> {
    using type = R;
    static constexpr bool is_future = true;
};

// Passes the result of `from` on to `into` once it is there.
template <typename R>
void forward(const std::shared_ptr<future_state<R>> &from, std::shared_ptr<future_state<R>> into) {
    from->on_ready([from = from.get(), keep = from, into = std::move(into)] {
        if (from->failure()) {
            into->fail(from->failure());
        } else {
            into->set(from->take());
        }
    });
}

} // namespace detail

// The result of a call or of a continuation. One thread at a time may use a future. Dropping it abandons the result;
// the call runs all the same.
template <typename T> class future {
public:
    using value_type = T;

    future() = default;
    explicit future(std::shared_ptr<detail::future_state<T>> state) : state_(std::move(state)) {}
    future(future &&) noexcept = default;
    future &operator=(future &&) noexcept = default;

    bool valid() const noexcept { return state_ != nullptr; }
    bool is_ready() const { return state().is_ready(); }
    void wait() const { state().wait(); }
    // Returns whether the result is there after at most `limit`.
    template <typename Rep, typename Period> bool wait_for(std::chrono::duration<Rep, Period> limit) const {
        return state().wait_for(limit);
    }

    // Waits, and returns the result or throws its error. The future is invalid afterwards.
    T get() {
        state().wait();
        const std::shared_ptr<detail::future_state<T>> taken = std::move(state_);
        if constexpr (std::is_void<T>::value) {
            taken->take();
        } else {
            return taken->take();
        }
    }

    // Returns the future of `next(value)`, or of the result of the future that `next` returns. `next` runs at once if
    // the value is there, and otherwise in the thread that sets it: the invoker's own thread, where it must not wait
    // for other calls. An error skips `next`. This future is invalid afterwards.
    template <typename F>
    auto then(F next) -> future<typename detail::final_value<typename detail::continuation<T, F>::type>::type> {
        using Returned = typename detail::continuation<T, F>::type;
        using R = typename detail::final_value<Returned>::type;
        static_cast<void>(state());
        auto from = std::move(state_);
        auto into = std::make_shared<detail::future_state<R>>();
        from->on_ready([from = from.get(), keep = from, into, next = std::make_shared<F>(std::move(next))] {
            if (from->failure()) {
                into->fail(from->failure());
                return;
            }
            const auto run = [&]() -> Returned {
                if constexpr (std::is_void<T>::value) {
                    from->take();
                    return (*next)();
                } else {
                    return (*next)(from->take());
                }
            };
            if constexpr (detail::final_value<Returned>::is_future) {
                future<R> inner;
                try {
                    inner = run();
                    static_cast<void>(inner.state());
                } catch (...) {
                    into->fail(std::current_exception());
                    return;
                }
                detail::forward(inner.state_, into);
            } else {
                detail::fulfil(*into, run);
            }
        });
        return future<R>(std::move(into));
    }

    // Converts to the future of the standard library.
    operator std::future<T>() && {
        auto promise = std::make_shared<std::promise<T>>();
        std::future<T> result = promise->get_future();
        static_cast<void>(state());
        auto from = std::move(state_);
        from->on_ready([from = from.get(), keep = from, promise] {
            try {
                if constexpr (std::is_void<T>::value) {
                    from->take();
                    promise->set_value();
                } else {
                    promise->set_value(from->take());
                }
            } catch (...) {
                promise->set_exception(std::current_exception());
            }
        });
        return result;
    }

    const std::shared_ptr<detail::future_state<T>> &shared() const noexcept { return state_; }

#ifdef DAYFLY_HAS_COROUTINES
    // A coroutine that awaits a future goes on at once, or in the thread that sets the result.
    auto operator co_await() && {
        struct awaiter {
            std::shared_ptr<detail::future_state<T>> state;
            bool await_ready() { return state->is_ready(); }
            void await_suspend(std::coroutine_handle<> handle) {
                // The coroutine may destroy this object while the continuation runs.
                auto keep = state;
                keep->on_ready([handle] { handle.resume(); });
            }
            T await_resume() {
                if constexpr (std::is_void<T>::value) {
                    state->take();
                } else {
                    return state->take();
                }
            }
        };
        static_cast<void>(state());
        return awaiter{std::move(state_)};
    }

    // A coroutine may return a future. It runs at once until its first wait.
    struct promise_base {
        std::shared_ptr<detail::future_state<T>> state = std::make_shared<detail::future_state<T>>();
        future get_return_object() { return future(state); }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void unhandled_exception() { state->fail(std::current_exception()); }
    };
    struct promise_of_value : promise_base {
        void return_value(detail::stored<T> value) { this->state->set(std::move(value)); }
    };
    struct promise_of_void : promise_base {
        void return_void() { this->state->set(detail::nothing{}); }
    };
    using promise_type = std::conditional_t<std::is_void<T>::value, promise_of_void, promise_of_value>;
#endif

private:
    template <typename U> friend class future;

    detail::future_state<T> &state() const {
        if (!state_) {
            throw error(DFLY_INVALID_REQUEST, "this future has no result: it was taken, moved or continued");
        }
        return *state_;
    }

    std::shared_ptr<detail::future_state<T>> state_;
};

namespace detail {

template <typename T> struct all_of {
    using type = std::vector<T>;
};
template <> struct all_of<void> {
    using type = void;
};

// The futures that one future waits for.
template <typename T> class collection {
public:
    using type = typename all_of<T>::type;

    explicit collection(std::vector<future<T>> &futures) {
        for (const future<T> &one : futures) {
            if (!one.valid()) {
                throw error(DFLY_INVALID_REQUEST, "one of the futures has no result: it was taken, moved or continued");
            }
            from_.push_back(one.shared());
        }
    }

    const std::vector<std::shared_ptr<future_state<T>>> &from() const noexcept { return from_; }
    const std::shared_ptr<future_state<type>> &into() const noexcept { return into_; }

    // Counts down. The last call sets the result.
    void count_down() {
        if (--left_ > 0) {
            return;
        }
        fulfil(*into_, [this]() -> type {
            if constexpr (std::is_void<T>::value) {
                for (const auto &state : from_) {
                    state->take();
                }
            } else {
                std::vector<T> values;
                values.reserve(from_.size());
                for (const auto &state : from_) {
                    values.push_back(state->take());
                }
                return values;
            }
        });
    }

    // Calls of `count_down` that set the result: one for each future, and one after all were visited.
    void expect() { left_ = from_.size() + 1; }

private:
    std::vector<std::shared_ptr<future_state<T>>> from_;
    std::atomic<std::size_t> left_{0};
    std::shared_ptr<future_state<type>> into_ = std::make_shared<future_state<type>>();
};

} // namespace detail

// Returns the future of all values, in order. It is ready when every future is, and fails with the error of the first
// of them in order that failed.
template <typename T> future<typename detail::all_of<T>::type> when_all(std::vector<future<T>> futures) {
    const auto all = std::make_shared<detail::collection<T>>(futures);
    all->expect();
    for (const auto &state : all->from()) {
        state->on_ready([all] { all->count_down(); });
    }
    all->count_down();
    return future<typename detail::all_of<T>::type>(all->into());
}

template <typename T, typename... More>
future<typename detail::all_of<T>::type> when_all(future<T> first, future<More>... more) {
    static_assert((std::is_same<T, More>::value && ...), "the futures must be of one type");
    std::vector<future<T>> futures;
    futures.push_back(std::move(first));
    (futures.push_back(std::move(more)), ...);
    return when_all(std::move(futures));
}

} // namespace dayfly

#endif
