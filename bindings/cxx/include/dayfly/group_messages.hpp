// The handle of a group, and its messages. Included by group.hpp.
#ifndef DAYFLY_GROUP_MESSAGES_HPP
#define DAYFLY_GROUP_MESSAGES_HPP

#include "group_buffers.hpp"
#include "request.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace dayfly {

namespace detail {

// The handle of a group, and what its operations share.
class group_handle {
public:
    std::uint32_t rank() const noexcept { return dfly_group_rank(get()); }
    std::uint32_t size() const noexcept { return dfly_group_size(get()); }
    dfly_group *get() const noexcept { return handle_.get(); }

protected:
    explicit group_handle(dfly_group *handle) : handle_(handle) {}

    template <typename View>
    using element = std::remove_cv_t<std::remove_pointer_t<decltype(std::declval<View>().data())>>;
    template <typename Own> using element_of = element<decltype(detail::view(std::declval<Own &>()))>;

    template <typename T> static constexpr std::uint32_t type(span<T>) {
        return detail::datatype<std::remove_cv_t<T>>::value;
    }

    template <typename T> static span<T> writable(span<T> into) {
        detail::check_types<T, T>();
        return into;
    }
    template <typename T, typename U> static span<U> same_type(span<T>, span<U> into) {
        detail::check_types<T, U>();
        return into;
    }

    template <typename Call> static void now(Call call) { detail::check(call(nullptr)); }
    template <typename Call> static request later(Call call, std::shared_ptr<detail::reduction_function> by = nullptr) {
        dfly_request *made = nullptr;
        detail::check(call(&made));
        return request(made, std::move(by));
    }

private:
    std::unique_ptr<dfly_group, detail::closer> handle_;
};

// Messages between two ranks of a group.
class group_messages : public group_handle {
public:
    // Sends a message, and returns when the buffer may be reused.
    template <typename Own> void send(const Own &own, std::uint32_t to, std::uint32_t tag = 0) const {
        const auto data = detail::view(own);
        detail::check(dfly_group_send(get(), data.data(), data.size(), type(data), to, tag));
    }

    // Receives a message. Throws DFLY_TRUNCATED if it is longer than the buffer.
    template <typename Into>
    message recv(Into &&into, std::uint32_t from = any_rank, std::uint32_t tag = any_tag) const {
        const auto room = writable(detail::view(into));
        message found;
        detail::check(dfly_group_recv(get(), room.data(), room.size(), type(room), from, tag, &found));
        return found;
    }

    // Sends and receives at the same time, so that ranks can exchange messages in a cycle without a deadlock.
    template <typename Own, typename Into>
    message sendrecv(const Own &own, std::uint32_t to, std::uint32_t send_tag, Into &&into, std::uint32_t from,
                     std::uint32_t receive_tag) const {
        const auto data = detail::view(own);
        const auto room = same_type(data, detail::view(into));
        message found;
        detail::check(dfly_group_sendrecv(get(), data.data(), data.size(), to, send_tag, room.data(), room.size(), from,
                                        receive_tag, type(room), &found));
        return found;
    }

    // Waits for a message, without receiving it.
    message probe(std::uint32_t from = any_rank, std::uint32_t tag = any_tag) const {
        message found;
        detail::check(dfly_group_probe(get(), from, tag, &found));
        return found;
    }

    // Returns the envelope of a message that can be received now, if there is one.
    std::optional<message> iprobe(std::uint32_t from = any_rank, std::uint32_t tag = any_tag) const {
        message found;
        bool came = false;
        detail::check(dfly_group_iprobe(get(), from, tag, &found, &came));
        return came ? std::optional<message>(found) : std::nullopt;
    }

    template <typename Own> request isend(Own &&own, std::uint32_t to, std::uint32_t tag = 0) const {
        const auto data = detail::lasting_view<Own>(own);
        return later([&](dfly_request **made) {
            return dfly_group_isend(get(), data.data(), data.size(), type(data), to, tag, made);
        });
    }

    template <typename Into>
    request irecv(Into &&into, std::uint32_t from = any_rank, std::uint32_t tag = any_tag) const {
        const auto room = writable(detail::lasting_view<Into>(into));
        return later([&](dfly_request **made) {
            return dfly_group_irecv(get(), room.data(), room.size(), type(room), from, tag, made);
        });
    }

protected:
    using group_handle::group_handle;
};

} // namespace detail

} // namespace dayfly

#endif
