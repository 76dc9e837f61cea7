// One channel to one worker: the shortest way.
#ifndef MAYFLY_CHANNEL_HPP
#define MAYFLY_CHANNEL_HPP

#include "client.hpp"
#include "memory.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mayfly {

struct channel_options {
    mayfly::transport transport = mayfly::transport::best;
    std::uint32_t slots = 64;         // calls that can be outstanding, a power of two
    std::uint32_t stride_bytes = 1024; // larger payloads travel through bulk memory
    std::chrono::microseconds spin{50}; // how long a wait polls before it sleeps
    bool always_spin = false;
    std::string fabric; // for libfabric: PROVIDER or PROVIDER/DOMAIN; empty for the one that the node offers first

    // Valid as long as these options.
    mf_channel_options raw() const {
        mf_channel_options options;
        detail::check(mf_channel_options_init(&options));
        options.transport = static_cast<std::uint32_t>(transport);
        options.slots = slots;
        options.fabric = fabric.empty() ? nullptr : fabric.c_str();
        options.stride_bytes = stride_bytes;
        options.spin_us = always_spin ? MF_FOR_EVER : static_cast<std::uint32_t>(spin.count());
        return options;
    }
};

// A function that a channel resolved.
struct function {
    std::uint16_t index;
};

// A channel to one worker. One thread at a time may use it, its allocators included.
class channel {
public:
    template <typename T> using vector = std::vector<T, mayfly::allocator<T>>;

    channel(const lease &lease, std::uint32_t worker, const channel_options &options = {}) {
        const mf_channel_options raw = options.raw();
        mf_channel *handle = nullptr;
        detail::check(mf_channel_open(lease.get(), worker, &raw, &handle));
        handle_.reset(handle);
        arena_ = std::make_shared<detail::arena>([handle](std::size_t bytes) {
            mf_buffer *made = nullptr;
            detail::check(mf_buffer_alloc(handle, bytes, &made));
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

    // Resolves a function of a library that the lease has.
    function load(const mf_code &code, const std::string &symbol, form kind = form::plain) {
        function loaded{};
        detail::check(
            mf_channel_load(get(), &code, symbol.c_str(), static_cast<std::uint32_t>(kind), &loaded.index));
        return loaded;
    }

    // Calls and waits; answers how many bytes of output there are. The worker is ended after `deadline`, if there is one.
    std::size_t call(function function, const void *in, std::size_t in_bytes, void *out, std::size_t out_capacity,
                     std::chrono::milliseconds deadline = {}) {
        std::size_t length = 0;
        detail::check(mf_channel_call(get(), function.index, ms(deadline), in, in_bytes, out, out_capacity, &length));
        return length;
    }

    // As above without a copy on shared memory; answers how many elements of `out` were written.
    template <typename In, typename Out>
    std::size_t call(function function, const buffer<In> &in, std::size_t count, buffer<Out> &out,
                     std::chrono::milliseconds deadline = {}) {
        return into(function, in.get(), count * sizeof(In), out.get(), deadline) / sizeof(Out);
    }
    template <typename In, typename Out>
    std::size_t call(function function, const vector<In> &in, vector<Out> &out,
                     std::chrono::milliseconds deadline = {}) {
        mf_buffer *from = arena_->find(in.data(), in.size() * sizeof(In));
        mf_buffer *to = arena_->find(out.data(), out.size() * sizeof(Out));
        return into(function, from, in.size() * sizeof(In), to, deadline) / sizeof(Out);
    }

    // Sends without waiting and answers the call's number. Every call needs a `wait` or `poll`.
    std::uint32_t submit(function function, const void *in, std::size_t bytes, std::chrono::milliseconds deadline = {}) {
        std::uint32_t sequence = 0;
        detail::check(mf_channel_submit(get(), function.index, ms(deadline), in, bytes, &sequence));
        return sequence;
    }

    // The next completion in the order of submission, if it is here. It lives until the channel's next function.
    bool poll(mf_completion &completion) {
        bool came = false;
        detail::check(mf_channel_poll(get(), &completion, &came));
        return came;
    }
    mf_completion wait(std::chrono::milliseconds limit = std::chrono::milliseconds(MF_FOR_EVER)) {
        mf_completion completion;
        detail::check(mf_channel_wait(get(), ms(limit), &completion));
        return completion;
    }

    template <typename T> mayfly::allocator<T> allocator() const { return mayfly::allocator<T>(arena_); }

    mayfly::transport transport() const noexcept {
        return static_cast<mayfly::transport>(mf_channel_transport(get()));
    }
    // The name of that: with libfabric also the provider and its domain.
    std::string transport_name() const { return mf_channel_transport_name(get()); }
    mf_channel *get() const noexcept { return handle_.get(); }

private:
    static std::uint32_t ms(std::chrono::milliseconds time) {
        return time.count() < MF_FOR_EVER ? static_cast<std::uint32_t>(time.count()) : MF_FOR_EVER;
    }

    std::size_t into(function function, const mf_buffer *in, std::size_t bytes, mf_buffer *out,
                     std::chrono::milliseconds deadline) {
        std::size_t length = 0;
        detail::check(mf_channel_call_into(get(), function.index, ms(deadline), in, bytes, out, &length));
        return length;
    }

    void close() noexcept {
        if (arena_) {
            arena_->close();
        }
        handle_.reset();
    }

    std::unique_ptr<mf_channel, detail::closer> handle_;
    std::shared_ptr<detail::arena> arena_;
};

} // namespace mayfly

#endif
