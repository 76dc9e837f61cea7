// Groups: programs whose ranks exchange messages.
//
//   dayfly::group group;                                               // of `dayfly run`, else of this process alone
//   double sum = group.allreduce(own, dayfly::operation::sum);         // of one element of each rank
//   group.allreduce(mine, all, [](double a, double b) { return std::hypot(a, b); });
//
// A buffer is an element (a number, `std::complex`, `dayfly::with_place`), a contiguous container, an array, or a
// `dayfly::span`. Input and output may be the same buffer. Operations with the prefix `i` continue in the background:
// they return a request, and their buffers must stay valid until it completes. An exception in a reduction function of
// the program is rethrown by the collective or by the wait for it; the result on the other ranks is then undefined.
#ifndef DAYFLY_GROUP_HPP
#define DAYFLY_GROUP_HPP

#include "group_collectives.hpp"
#include "group_options.hpp"

#include <cstdint>
#include <optional>

namespace dayfly {

// A group of ranks that exchange messages, as one of them sees it. Thread-safe: threads take turns.
class group : public detail::group_collectives {
public:
    // Joins the group that `dayfly run` started this process in, else a group of one.
    group() : group(open([](dfly_group **handle) { return dfly_group_join(nullptr, handle); })) {}
    // Joins a group, and returns when all ranks have joined and are connected.
    explicit group(const group_options &options)
        : group(open([raw = options.raw()](dfly_group **handle) { return dfly_group_join(&raw, handle); })) {}
    explicit group(dfly_group *handle) : group_collectives(handle) {}

    // Translates a rank of this part into the rank in the group that the process joined.
    std::uint32_t member(std::uint32_t rank) const {
        std::uint32_t found = 0;
        detail::check(dfly_group_member(get(), rank, &found));
        return found;
    }

    // Returns a group of the ranks with the same colour, ordered by key. Returns nothing on a rank without a colour.
    // All ranks must call it.
    std::optional<group> split(std::optional<std::uint32_t> color, std::int64_t key = 0) const {
        dfly_group *part = nullptr;
        detail::check(dfly_group_split(get(), color.value_or(DFLY_NO_COLOR), key, &part));
        return part ? std::optional<group>(std::in_place, part) : std::nullopt;
    }
    // Returns another group of the same ranks, whose messages are separate. All ranks must call it.
    group dup() const {
        return group(open([&](dfly_group **handle) { return dfly_group_dup(get(), handle); }));
    }
    // Returns a group of the surviving ranks, after they agree on which ranks are lost. All surviving ranks must call
    // it.
    group shrink() const {
        return group(open([&](dfly_group **handle) { return dfly_group_shrink(get(), handle); }));
    }

private:
    template <typename Open> static dfly_group *open(Open how) {
        dfly_group *handle = nullptr;
        detail::check(how(&handle));
        return handle;
    }
};

} // namespace dayfly

#endif
