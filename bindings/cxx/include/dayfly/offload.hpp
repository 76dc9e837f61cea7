// Loops shared between this program and leased workers, so that the program never waits for them.
//
//     dayfly::offload plan;
//     for (;;) {                                                     // each step of the program
//         auto loop = plan.share(invoker, "price", options, prices, count, 1024);
//     #pragma omp parallel for
//         for (std::size_t i = 0; i < loop.local(); i++) prices[i] = price(options[i]);
//         loop.finish([&](std::size_t i) { prices[i] = price(options[i]); });
//     }
#ifndef DAYFLY_OFFLOAD_HPP
#define DAYFLY_OFFLOAD_HPP

#include "invoker.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace dayfly {

class offload;

namespace detail {

struct offload_closer {
    void operator()(dfly_offload *handle) const noexcept { dfly_offload_free(handle); }
};

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A step that is shared: what its calls write into when they end. Calls keep it, so that they may end late.
struct shared_step {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t running = 0;
    // First item and number of items of each call that failed.
    std::vector<std::pair<std::size_t, std::size_t>> failed;
};

} // namespace detail

// A loop: this program computes the items from 0 to `local()`, and leased workers the others. `finish` must be
// called; the destructor waits for the workers.
class shared_loop {
public:
    shared_loop(shared_loop &&) = default;
    shared_loop &operator=(shared_loop &&) = delete;
    ~shared_loop() { wait(); }

    // Number of items that this program computes.
    std::size_t local() const noexcept { return local_; }
    // Number of items that workers compute.
    std::size_t remote() const noexcept { return items_ - local_; }
    const dfly_split &split() const noexcept { return split_; }
    // Seconds that the last `finish` waited for workers.
    double waited() const noexcept { return waited_; }

    // Ends the loop: waits for the workers, and calls `again(i)` for each item whose call failed. The time since the
    // calls were sent counts as the time of the local items.
    template <typename Again> void finish(Again again);

private:
    friend class offload;
    shared_loop() = default;

    void wait() {
        if (step_) {
            std::unique_lock<std::mutex> lock(step_->mutex);
            step_->changed.wait(lock, [this] { return step_->running == 0; });
        }
    }

    std::shared_ptr<detail::shared_step> step_;
    offload *plan_ = nullptr;
    dfly_split split_{};
    std::size_t items_ = 0, local_ = 0, grain_ = 1, bytes_ = 0;
    std::uint64_t function_ = 0;
    std::uint32_t threads_ = 1;
    double started_ = 0, waited_ = 0;
};

// Learns how long calls take here and on workers, and divides loops. Thread-safe. Outlives its loops.
class offload {
public:
    offload() {
        dfly_offload *handle = nullptr;
        detail::check(dfly_offload_new(&handle));
        handle_.reset(handle);
    }

    // The number of a function in the calls below.
    static std::uint64_t number(const std::string &function) { return std::hash<std::string>{}(function); }

    void set_workers(std::uint32_t workers) { detail::check(dfly_offload_set_workers(handle_.get(), workers)); }

    // Divides `calls` calls with `bytes` bytes of input and output each.
    dfly_split split_for(const std::string &function, std::size_t bytes, std::size_t calls, std::uint32_t threads = 1) {
        dfly_split split{};
        detail::check(dfly_offload_split(handle_.get(), number(function), bytes, calls, threads, &split, nullptr, 0));
        return split;
    }
    // What is known of a function and a size on one worker.
    dfly_offload_times estimate(const std::string &function, std::size_t bytes, std::uint32_t worker = 0) {
        dfly_offload_times times{};
        detail::check(dfly_offload_estimate(handle_.get(), number(function), bytes, worker, &times));
        return times;
    }
    void record_local(std::uint64_t function, std::size_t bytes, std::size_t calls, double seconds) {
        detail::check(dfly_offload_record_local(handle_.get(), function, bytes, calls, seconds));
    }
    void record_remote(std::uint64_t function, std::size_t bytes, double submitted, double sent, double ended) {
        detail::check(dfly_offload_record_remote(handle_.get(), function, bytes, DFLY_ANY_WORKER, submitted, sent, ended,
                                                 true));
    }

    // Starts a loop over `items` items. The function takes an array of `In` and writes one `Out` for each; a call gets
    // up to `grain` items. `threads` is the number of threads of the program that compute the local items. `workers`
    // may be an invoker without workers: then every item is local.
    template <typename In, typename Out>
    shared_loop share(invoker &workers, const std::string &function, const In *in, Out *out, std::size_t items,
                      std::size_t grain, std::uint32_t threads = 1) {
        shared_loop loop;
        loop.plan_ = this;
        loop.step_ = std::make_shared<detail::shared_step>();
        loop.items_ = items;
        loop.grain_ = std::max<std::size_t>(grain, 1);
        loop.bytes_ = loop.grain_ * (sizeof(In) + sizeof(Out));
        loop.function_ = number(function);
        loop.threads_ = std::max(threads, 1u);
        set_workers(workers.remaining());
        const std::size_t calls = items / loop.grain_;
        loop.split_ = split_for(function, loop.bytes_, calls, threads);
        loop.local_ = items - static_cast<std::size_t>(loop.split_.remote) * loop.grain_;
        for (std::size_t first = loop.local_; first < items; first += loop.grain_) {
            send(loop, workers, function, in, out, first);
        }
        loop.started_ = detail::seconds_now();
        return loop;
    }

private:
    template <typename In, typename Out>
    void send(shared_loop &loop, invoker &workers, const std::string &function, const In *in, Out *out,
              std::size_t first) {
        const std::size_t count = loop.grain_;
        const auto step = loop.step_;
        struct clock {
            double submitted, sent;
        };
        const auto times = std::make_shared<clock>(clock{detail::seconds_now(), 0});
        const auto ended = [this, step, times, first, count, out, function = loop.function_,
                            bytes = loop.bytes_](const result &end) {
            const double now = detail::seconds_now();
            std::lock_guard<std::mutex> lock(step->mutex);
            if (end.ok() && end.bytes() == count * sizeof(Out)) {
                std::memcpy(static_cast<void *>(out + first), end.data(), end.bytes());
                const double sent = times->sent > 0 ? times->sent : times->submitted;
                static_cast<void>(dfly_offload_record_remote(handle_.get(), function, bytes, DFLY_ANY_WORKER,
                                                             times->submitted, sent, now, true));
            } else {
                step->failed.emplace_back(first, count);
            }
            if (--step->running == 0) {
                step->changed.notify_all();
            }
        };
        {
            std::lock_guard<std::mutex> lock(step->mutex);
            step->running++;
        }
        try {
            workers.submit(function, in + first, count * sizeof(In), ended);
        } catch (const error &) {
            std::lock_guard<std::mutex> lock(step->mutex);
            step->running--;
            step->failed.emplace_back(first, count);
            return;
        }
        const double sent = detail::seconds_now();
        std::lock_guard<std::mutex> lock(step->mutex);
        times->sent = sent;
    }

    std::unique_ptr<dfly_offload, detail::offload_closer> handle_;
};

template <typename Again> void shared_loop::finish(Again again) {
    const double now = detail::seconds_now();
    if (local_ > 0) {
        const double calls = static_cast<double>(local_) / static_cast<double>(grain_);
        const double each = (now - started_) * threads_ / calls;
        plan_->record_local(function_, bytes_, 1, each);
    }
    wait();
    waited_ = detail::seconds_now() - now;
    std::vector<std::pair<std::size_t, std::size_t>> failed;
    std::swap(failed, step_->failed);
    for (const auto &[first, count] : failed) {
        for (std::size_t item = first; item < first + count; item++) {
            again(item);
        }
    }
}

} // namespace dayfly

#endif
