// A channel to one worker, for the lowest latency.
#ifndef DAYFLY_CHANNEL_HPP
#define DAYFLY_CHANNEL_HPP

#include "client.hpp"
#include "memory.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dayfly {

struct channel_options {
    dayfly::transport transport = dayfly::transport::best;
    std::uint32_t slots = 64;         // maximum of outstanding calls, a power of two
    std::uint32_t stride_bytes = 1024; // size of a slot; larger payloads use bulk memory
    std::chrono::microseconds spin{50}; // how long a wait polls before it sleeps; see `always_spin`
    bool always_spin = false;
    std::string fabric; // for libfabric: PROVIDER or PROVIDER/DOMAIN; empty for the first that the node offers

    // Returns the options for the C library. The result points into this object and is valid as long as it.
    dfly_channel_options raw() const {
        dfly_channel_options options;
        detail::check(dfly_channel_options_init(&options));
        options.transport = static_cast<std::uint32_t>(transport);
        options.slots = slots;
        options.fabric = fabric.empty() ? nullptr : fabric.c_str();
        options.stride_bytes = stride_bytes;
        options.spin_us = always_spin ? DFLY_FOR_EVER : static_cast<std::uint32_t>(spin.count());
        return options;
    }
};

// A function resolved on a channel, and valid on that channel only.
struct function {
    std::uint16_t index;
};

// A channel to one worker. One thread at a time may use it and its allocators.
class channel {
public:
    template <typename T> using vector = std::vector<T, dayfly::allocator<T>>;

    channel(const lease &lease, std::uint32_t worker, const channel_options &options = {}) {
        const dfly_channel_options raw = options.raw();
        dfly_channel *handle = nullptr;
        detail::check(dfly_channel_open(lease.get(), worker, &raw, &handle));
        handle_.reset(handle);
        arena_ = std::make_shared<detail::arena>([handle](std::size_t bytes) {
            dfly_buffer *made = nullptr;
            detail::check(dfly_buffer_alloc(handle, bytes, &made));
            return made;
        });
    }
    channel(channel &&) = default;
    channel &operator=(channel &&other) noexcept {
        if (this != &other) {
            close();
            handle_ = std::move(other.handle_);
            arena_ = std::move(other.arena_);
        }
        return *this;
    }
    ~channel() { close(); }

    // Resolves a function of a library that the lease has loaded. No call may be outstanding.
    function load(const dfly_code &code, const std::string &symbol, form kind = form::plain) {
        function loaded{};
        detail::check(
            dfly_channel_load(get(), &code, symbol.c_str(), static_cast<std::uint32_t>(kind), &loaded.index));
        return loaded;
    }

    // Calls a function, waits, and returns the length of the output in bytes. `deadline` limits the execution; 0 means
    // no limit. Throws DFLY_OUTPUT_OVERFLOW if the output exceeds `out_capacity`.
    std::size_t call(function function, const void *in, std::size_t in_bytes, void *out, std::size_t out_capacity,
                     std::chrono::milliseconds deadline = {}) {
        std::size_t length = 0;
        detail::check(dfly_channel_call(get(), function.index, ms(deadline), in, in_bytes, out, out_capacity, &length));
        return length;
    }

    // As above, on buffers of this channel, without a copy over shared memory. Returns the number of elements of `out`
    // that were written.
    template <typename In, typename Out>
    std::size_t call(function function, const buffer<In> &in, std::size_t count, buffer<Out> &out,
                     std::chrono::milliseconds deadline = {}) {
        return into(function, in.get(), count * sizeof(In), out.get(), deadline) / sizeof(Out);
    }
    template <typename In, typename Out>
    std::size_t call(function function, const vector<In> &in, vector<Out> &out,
                     std::chrono::milliseconds deadline = {}) {
        dfly_buffer *from = arena_->find(in.data(), in.size() * sizeof(In));
        dfly_buffer *to = arena_->find(out.data(), out.size() * sizeof(Out));
        return into(function, from, in.size() * sizeof(In), to, deadline) / sizeof(Out);
    }

    // Submits a call without waiting and returns its number. Take one completion for each call, with `wait` or `poll`.
    std::uint32_t submit(function function, const void *in, std::size_t bytes, std::chrono::milliseconds deadline = {}) {
        std::uint32_t sequence = 0;
        detail::check(dfly_channel_submit(get(), function.index, ms(deadline), in, bytes, &sequence));
        return sequence;
    }

    // Takes the next completion, in the order of submission, if there is one. It is valid until the next function of
    // this channel.
    bool poll(dfly_completion &completion) {
        bool came = false;
        detail::check(dfly_channel_poll(get(), &completion, &came));
        return came;
    }
    dfly_completion wait(std::chrono::milliseconds limit = std::chrono::milliseconds(DFLY_FOR_EVER)) {
        dfly_completion completion;
        detail::check(dfly_channel_wait(get(), ms(limit), &completion));
        return completion;
    }

    template <typename T> dayfly::allocator<T> allocator() const { return dayfly::allocator<T>(arena_); }

    dayfly::transport transport() const noexcept {
        return static_cast<dayfly::transport>(dfly_channel_transport(get()));
    }
    // Returns `shm`, `tcp`, `tls`, or `libfabric:` with provider and domain.
    std::string transport_name() const { return dfly_channel_transport_name(get()); }
    dfly_channel *get() const noexcept { return handle_.get(); }

private:
    static std::uint32_t ms(std::chrono::milliseconds time) {
        return time.count() < DFLY_FOR_EVER ? static_cast<std::uint32_t>(time.count()) : DFLY_FOR_EVER;
    }

    std::size_t into(function function, const dfly_buffer *in, std::size_t bytes, dfly_buffer *out,
                     std::chrono::milliseconds deadline) {
        std::size_t length = 0;
        detail::check(dfly_channel_call_into(get(), function.index, ms(deadline), in, bytes, out, &length));
        return length;
    }

    void close() noexcept {
        if (arena_) {
            arena_->close();
        }
        handle_.reset();
    }

    std::unique_ptr<dfly_channel, detail::closer> handle_;
    std::shared_ptr<detail::arena> arena_;
};

} // namespace dayfly

#endif
