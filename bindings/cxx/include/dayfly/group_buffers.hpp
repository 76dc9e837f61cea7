// Elements and buffers that ranks exchange, and the envelope of a message. Included by group.hpp.
#ifndef DAYFLY_GROUP_BUFFERS_HPP
#define DAYFLY_GROUP_BUFFERS_HPP

#include "error.hpp"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

namespace dayfly {

// Any rank, no rank and any tag, as in dayfly.h.
constexpr std::uint32_t any_rank = DFLY_ANY_RANK;
constexpr std::uint32_t no_rank = DFLY_NO_RANK;
constexpr std::uint32_t any_tag = DFLY_ANY_TAG;

// A value and its index, for `operation::min_at` and `max_at`. `T` is `double` or `std::int64_t`.
template <typename T> struct with_place {
    T value;
    std::int64_t place;
};

// `size()` elements at `data()`, for memory without a container.
template <typename T> class span {
public:
    span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t index) const noexcept { return data_[index]; }

private:
    T *data_;
    std::size_t size_;
};

// Envelope of a message that was received or probed: `source`, `tag`, `length` in bytes.
struct message : dfly_message {
    template <typename T> std::size_t count() const noexcept { return length / sizeof(T); }
};

namespace detail {

constexpr std::uint32_t no_datatype = UINT32_MAX;

template <typename T> constexpr std::uint32_t number_type() {
    if constexpr (std::is_same_v<T, bool>) {
        return DFLY_BOOL;
    } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 8) {
        constexpr bool is_signed = std::is_signed_v<T>;
        switch (sizeof(T)) {
        case 1: return is_signed ? DFLY_I8 : DFLY_U8;
        case 2: return is_signed ? DFLY_I16 : DFLY_U16;
        case 4: return is_signed ? DFLY_I32 : DFLY_U32;
        default: return is_signed ? DFLY_I64 : DFLY_U64;
        }
    } else {
        return no_datatype;
    }
}

template <typename T> struct datatype : std::integral_constant<std::uint32_t, number_type<T>()> {};
template <> struct datatype<std::byte> : std::integral_constant<std::uint32_t, DFLY_BYTES> {};
template <> struct datatype<float> : std::integral_constant<std::uint32_t, DFLY_F32> {};
template <> struct datatype<double> : std::integral_constant<std::uint32_t, DFLY_F64> {};
template <> struct datatype<std::complex<float>> : std::integral_constant<std::uint32_t, DFLY_COMPLEX64> {};
template <> struct datatype<std::complex<double>> : std::integral_constant<std::uint32_t, DFLY_COMPLEX128> {};
template <> struct datatype<with_place<double>> : std::integral_constant<std::uint32_t, DFLY_F64_AT> {};
template <> struct datatype<with_place<std::int64_t>> : std::integral_constant<std::uint32_t, DFLY_I64_AT> {};

template <typename T> constexpr bool is_element = datatype<std::remove_cv_t<T>>::value != no_datatype;

template <typename T> struct is_span : std::false_type {};
template <typename T> struct is_span<span<T>> : std::true_type {};

// Returns a view of the caller's buffer.
template <typename Buffer> auto view(Buffer &buffer) {
    if constexpr (is_element<Buffer>) {
        return span<Buffer>(&buffer, 1);
    } else {
        using element = std::remove_pointer_t<decltype(std::data(buffer))>;
        static_assert(is_element<element>, "ranks exchange numbers, std::complex, std::byte and dayfly::with_place");
        return span<element>(std::data(buffer), std::size(buffer));
    }
}

// As `view`, for a buffer that outlives the current expression. Temporaries do not compile.
template <typename Buffer> auto lasting_view(std::remove_reference_t<Buffer> &buffer) {
    static_assert(std::is_lvalue_reference_v<Buffer> || is_span<std::remove_cv_t<Buffer>>::value,
                  "this buffer would be destroyed before the operation completes: pass a variable or a dayfly::span");
    return view(buffer);
}

template <typename Own, typename Into> constexpr void check_types() {
    static_assert(!std::is_const_v<Into>, "a buffer that receives must be writable");
    static_assert(std::is_same_v<std::remove_cv_t<Own>, Into>, "the buffers of an operation need one element type");
}

inline void expect(bool holds, const char *otherwise) {
    if (!holds) {
        throw error(DFLY_INVALID_REQUEST, otherwise);
    }
}

} // namespace detail

} // namespace dayfly

#endif
