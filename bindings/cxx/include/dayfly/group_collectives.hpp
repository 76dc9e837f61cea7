// The collectives of a group. Included by group.hpp.
#ifndef DAYFLY_GROUP_COLLECTIVES_HPP
#define DAYFLY_GROUP_COLLECTIVES_HPP

#include "group_messages.hpp"
#include "reduction.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace dayfly {

namespace detail {

// Collectives: all ranks must call the same ones in the same order.
class group_collectives : public group_messages {
public:
    // Blocks until all ranks have called it.
    void barrier() const { detail::check(dfly_group_barrier(get(), nullptr)); }
    request ibarrier() const {
        return later([&](dfly_request **made) { return dfly_group_barrier(get(), made); });
    }

    // Copies the root's elements to all ranks.
    template <typename Buffer> void bcast(Buffer &&buffer, std::uint32_t root = 0) const {
        now(bcast_of(writable(detail::view(buffer)), root));
    }
    template <typename Buffer> request ibcast(Buffer &&buffer, std::uint32_t root = 0) const {
        return later(bcast_of(writable(detail::lasting_view<Buffer>(buffer)), root));
    }

    // Gathers the elements of all ranks to the root, in the order of the ranks. `into` is used at the root only.
    template <typename Own, typename Into> void gather(const Own &own, Into &&into, std::uint32_t root) const {
        now(gather_of(detail::view(own), detail::view(into), root));
    }
    template <typename Own, typename Into> request igather(Own &&own, Into &&into, std::uint32_t root) const {
        return later(gather_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into), root));
    }
    // As above. Returns a vector, which is empty except at the root.
    template <typename Own> auto gather(const Own &own, std::uint32_t root) const {
        const auto data = detail::view(own);
        std::vector<element<decltype(data)>> into(rank() == root ? data.size() * size() : 0);
        gather(own, into, root);
        return into;
    }

    // Gathers a different number of elements from each rank. `displacements` are in elements of `into`; without them
    // the blocks are contiguous.
    template <typename Own, typename Into>
    void gatherv(const Own &own, Into &&into, const std::vector<std::size_t> &counts, std::uint32_t root,
                 const std::vector<std::size_t> &displacements = {}) const {
        now(gatherv_of(detail::view(own), detail::view(into), counts, root, displacements));
    }
    template <typename Own, typename Into>
    request igatherv(Own &&own, Into &&into, const std::vector<std::size_t> &counts, std::uint32_t root,
                     const std::vector<std::size_t> &displacements = {}) const {
        return later(
            gatherv_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into), counts, root, displacements));
    }

    // Distributes the root's elements in equal parts, in the order of the ranks. `all` is used at the root only.
    template <typename All, typename Into> void scatter(const All &all, Into &&into, std::uint32_t root) const {
        now(scatter_of(detail::view(all), detail::view(into), root));
    }
    template <typename All, typename Into> request iscatter(All &&all, Into &&into, std::uint32_t root) const {
        return later(scatter_of(detail::lasting_view<All>(all), detail::lasting_view<Into>(into), root));
    }

    // As above, with parts of different lengths.
    template <typename All, typename Into>
    void scatterv(const All &all, const std::vector<std::size_t> &counts, Into &&into, std::uint32_t root,
                  const std::vector<std::size_t> &displacements = {}) const {
        now(scatterv_of(detail::view(all), counts, detail::view(into), root, displacements));
    }
    template <typename All, typename Into>
    request iscatterv(All &&all, const std::vector<std::size_t> &counts, Into &&into, std::uint32_t root,
                      const std::vector<std::size_t> &displacements = {}) const {
        return later(
            scatterv_of(detail::lasting_view<All>(all), counts, detail::lasting_view<Into>(into), root, displacements));
    }

    // Gathers the elements of all ranks to all ranks, in the order of the ranks.
    template <typename Own, typename Into> void allgather(const Own &own, Into &&into) const {
        now(allgather_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into> request iallgather(Own &&own, Into &&into) const {
        return later(allgather_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into)));
    }
    template <typename Own> auto allgather(const Own &own) const {
        const auto data = detail::view(own);
        std::vector<element<decltype(data)>> into(data.size() * size());
        allgather(own, into);
        return into;
    }

    // As above, with a different number of elements from each rank. The counts must be equal on all ranks.
    template <typename Own, typename Into>
    void allgatherv(const Own &own, Into &&into, const std::vector<std::size_t> &counts,
                    const std::vector<std::size_t> &displacements = {}) const {
        now(allgatherv_of(detail::view(own), detail::view(into), counts, displacements));
    }
    template <typename Own, typename Into>
    request iallgatherv(Own &&own, Into &&into, const std::vector<std::size_t> &counts,
                        const std::vector<std::size_t> &displacements = {}) const {
        return later(
            allgatherv_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into), counts, displacements));
    }

    // Sends one part of `own` to each rank, and receives one part from each. All parts have the same length.
    template <typename Own, typename Into> void alltoall(const Own &own, Into &&into) const {
        now(alltoall_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into> request ialltoall(Own &&own, Into &&into) const {
        return later(alltoall_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into)));
    }

    // As above, with parts of different lengths. Without displacements the parts are contiguous.
    template <typename Own, typename Into>
    void alltoallv(const Own &own, const std::vector<std::size_t> &sent, Into &&into,
                   const std::vector<std::size_t> &received, const std::vector<std::size_t> &sent_displacements = {},
                   const std::vector<std::size_t> &received_displacements = {}) const {
        now(alltoallv_of(detail::view(own), sent, detail::view(into), received, sent_displacements,
                         received_displacements));
    }
    template <typename Own, typename Into>
    request ialltoallv(Own &&own, const std::vector<std::size_t> &sent, Into &&into,
                       const std::vector<std::size_t> &received,
                       const std::vector<std::size_t> &sent_displacements = {},
                       const std::vector<std::size_t> &received_displacements = {}) const {
        return later(alltoallv_of(detail::lasting_view<Own>(own), sent, detail::lasting_view<Into>(into), received,
                                  sent_displacements, received_displacements));
    }

    // Reduces the elements of all ranks to the root. `into` is used at the root only.
    template <typename Own, typename Into, typename Operation>
    void reduce(const Own &own, Into &&into, const Operation &by, std::uint32_t root) const {
        combine<Own>(by, reduce_of(detail::view(own), detail::view(into), root));
    }
    template <typename Own, typename Into, typename Operation>
    request ireduce(Own &&own, Into &&into, const Operation &by, std::uint32_t root) const {
        return icombine<Own>(by, reduce_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into), root));
    }

    // Reduces the elements of all ranks to all ranks.
    template <typename Own, typename Into, typename Operation>
    void allreduce(const Own &own, Into &&into, const Operation &by) const {
        combine<Own>(by, allreduce_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into, typename Operation>
    request iallreduce(Own &&own, Into &&into, const Operation &by) const {
        return icombine<Own>(by, allreduce_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into)));
    }
    // As above, for one element. Returns the result.
    template <typename T, typename Operation> T allreduce(const T &own, const Operation &by) const {
        static_assert(detail::is_element<T>, "without a result buffer, allreduce takes one element of each rank");
        T all{};
        allreduce(own, all, by);
        return all;
    }

    // Reduces the elements of all ranks, and gives each rank its part of the result: `counts[i]` elements to rank i, or
    // equal parts.
    template <typename Own, typename Into, typename Operation>
    void reduce_scatter(const Own &own, Into &&into, const std::vector<std::size_t> &counts,
                        const Operation &by) const {
        combine<Own>(by, reduce_scatter_of(detail::view(own), detail::view(into), counts));
    }
    template <typename Own, typename Into, typename Operation>
    void reduce_scatter(const Own &own, Into &&into, const Operation &by) const {
        reduce_scatter(own, into, std::vector<std::size_t>(size(), detail::view(into).size()), by);
    }
    template <typename Own, typename Into, typename Operation>
    request ireduce_scatter(Own &&own, Into &&into, const std::vector<std::size_t> &counts, const Operation &by) const {
        return icombine<Own>(
            by, reduce_scatter_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into), counts));
    }

    // Inclusive prefix reduction: reduces the elements of ranks 0 to this rank.
    template <typename Own, typename Into, typename Operation>
    void scan(const Own &own, Into &&into, const Operation &by) const {
        combine<Own>(by, scan_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into, typename Operation>
    request iscan(Own &&own, Into &&into, const Operation &by) const {
        return icombine<Own>(by, scan_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into)));
    }

    // Exclusive prefix reduction: reduces the elements of the ranks before this one. `into` of rank 0 is not changed.
    template <typename Own, typename Into, typename Operation>
    void exscan(const Own &own, Into &&into, const Operation &by) const {
        combine<Own>(by, exscan_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into, typename Operation>
    request iexscan(Own &&own, Into &&into, const Operation &by) const {
        return icombine<Own>(by, exscan_of(detail::lasting_view<Own>(own), detail::lasting_view<Into>(into)));
    }

protected:
    using group_messages::group_messages;

private:
    using counts_type = std::vector<std::size_t>;

    template <typename Own, typename Operation, typename Call> static void combine(const Operation &by, Call call) {
        if constexpr (std::is_same_v<Operation, operation>) {
            detail::check(call(static_cast<std::uint32_t>(by), nullptr));
        } else {
            detail::function_operation<element_of<const Own>, Operation> own(by);
            const dfly_status status = call(own.number(), nullptr);
            own.rethrow();
            detail::check(status);
        }
    }
    template <typename Own, typename Operation, typename Call>
    static request icombine(const Operation &by, Call call) {
        if constexpr (std::is_same_v<Operation, operation>) {
            return later([&](dfly_request **made) { return call(static_cast<std::uint32_t>(by), made); });
        } else {
            using element = element_of<std::remove_reference_t<Own>>;
            auto own = std::make_shared<detail::function_operation<element, Operation>>(by);
            const std::uint32_t number = own->number();
            return later([&](dfly_request **made) { return call(number, made); }, std::move(own));
        }
    }

    void check_counts(const counts_type &counts, const counts_type &displacements, std::size_t room) const {
        detail::expect(counts.size() == size(), "give one count for each rank");
        detail::expect(displacements.empty() || displacements.size() == size(), "give one displacement for each rank");
        std::size_t next = 0;
        for (std::size_t at = 0; at < counts.size(); at++) {
            next = displacements.empty() ? next : displacements[at];
            detail::expect(next <= room && counts[at] <= room - next,
                           "the counts add up to more elements than the buffer has");
            next += counts[at];
        }
    }
    static const std::size_t *start(const counts_type &numbers) { return numbers.empty() ? nullptr : numbers.data(); }

    // Calls of the C library, after the arguments have been checked.

    template <typename T> auto bcast_of(span<T> data, std::uint32_t root) const {
        return [=, of = get()](dfly_request **made) {
            return dfly_group_bcast(of, data.data(), data.size(), type(data), root, made);
        };
    }

    template <typename T, typename U> auto gather_of(span<T> own, span<U> into, std::uint32_t root) const {
        same_type(own, into);
        detail::expect(rank() != root || into.size() == own.size() * size(),
                       "the root's buffer of a gather has as many elements as all ranks give");
        return [=, of = get()](dfly_request **made) {
            return dfly_group_gather(of, own.data(), own.size(), type(own), into.data(), root, made);
        };
    }

    template <typename T, typename U>
    auto gatherv_of(span<T> own, span<U> into, const counts_type &counts, std::uint32_t root,
                    const counts_type &displacements) const {
        same_type(own, into);
        if (rank() == root) {
            check_counts(counts, displacements, into.size());
        }
        return [=, of = get(), &counts, &displacements](dfly_request **made) {
            return dfly_group_gatherv(of, own.data(), own.size(), type(own), into.data(), start(counts),
                                    start(displacements), root, made);
        };
    }

    template <typename T, typename U> auto scatter_of(span<T> all, span<U> into, std::uint32_t root) const {
        same_type(all, into);
        detail::expect(rank() != root || all.size() == into.size() * size(),
                       "the root's buffer of a scatter has as many elements as all ranks get");
        return [=, of = get()](dfly_request **made) {
            return dfly_group_scatter(of, all.data(), into.data(), into.size(), type(into), root, made);
        };
    }

    template <typename T, typename U>
    auto scatterv_of(span<T> all, const counts_type &counts, span<U> into, std::uint32_t root,
                     const counts_type &displacements) const {
        same_type(all, into);
        if (rank() == root) {
            check_counts(counts, displacements, all.size());
        }
        return [=, of = get(), &counts, &displacements](dfly_request **made) {
            return dfly_group_scatterv(of, all.data(), start(counts), start(displacements), into.data(), into.size(),
                                     type(into), root, made);
        };
    }

    template <typename T, typename U> auto allgather_of(span<T> own, span<U> into) const {
        same_type(own, into);
        detail::expect(into.size() == own.size() * size(),
                       "the buffer of an allgather has as many elements as all ranks give");
        return [=, of = get()](dfly_request **made) {
            return dfly_group_allgather(of, own.data(), own.size(), type(own), into.data(), made);
        };
    }

    template <typename T, typename U>
    auto allgatherv_of(span<T> own, span<U> into, const counts_type &counts, const counts_type &displacements) const {
        same_type(own, into);
        check_counts(counts, displacements, into.size());
        return [=, of = get(), &counts, &displacements](dfly_request **made) {
            return dfly_group_allgatherv(of, own.data(), own.size(), type(own), into.data(), start(counts),
                                       start(displacements), made);
        };
    }

    template <typename T, typename U> auto alltoall_of(span<T> own, span<U> into) const {
        same_type(own, into);
        detail::expect(own.size() == into.size() && own.size() % size() == 0,
                       "both buffers of an alltoall have as many elements for each rank");
        const std::size_t each = own.size() / size();
        return [=, of = get()](dfly_request **made) {
            return dfly_group_alltoall(of, own.data(), into.data(), each, type(own), made);
        };
    }

    template <typename T, typename U>
    auto alltoallv_of(span<T> own, const counts_type &sent, span<U> into, const counts_type &received,
                      const counts_type &sent_displacements, const counts_type &received_displacements) const {
        same_type(own, into);
        check_counts(sent, sent_displacements, own.size());
        check_counts(received, received_displacements, into.size());
        return [=, of = get(), &sent, &received, &sent_displacements, &received_displacements](dfly_request **made) {
            return dfly_group_alltoallv(of, own.data(), start(sent), start(sent_displacements), into.data(),
                                      start(received), start(received_displacements), type(own), made);
        };
    }

    template <typename T, typename U> static void same_length(span<T> own, span<U> into) {
        same_type(own, into);
        detail::expect(own.size() == into.size(), "the result of a reduction has as many elements as each rank gives");
    }

    template <typename T, typename U> auto reduce_of(span<T> own, span<U> into, std::uint32_t root) const {
        same_type(own, into);
        if (rank() == root) {
            same_length(own, into);
        }
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_reduce(of, own.data(), into.data(), own.size(), type(own), by, root, made);
        };
    }

    template <typename T, typename U> auto allreduce_of(span<T> own, span<U> into) const {
        same_length(own, into);
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_allreduce(of, own.data(), into.data(), own.size(), type(own), by, made);
        };
    }

    template <typename T, typename U>
    auto reduce_scatter_of(span<T> own, span<U> into, const counts_type &counts) const {
        same_type(own, into);
        check_counts(counts, {}, own.size());
        detail::expect(into.size() == counts[rank()], "the result of a reduce_scatter is as long as this rank's count");
        return [=, of = get(), &counts](std::uint32_t by, dfly_request **made) {
            return dfly_group_reduce_scatter(of, own.data(), into.data(), counts.data(), type(own), by, made);
        };
    }

    template <typename T, typename U> auto scan_of(span<T> own, span<U> into) const {
        same_length(own, into);
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_scan(of, own.data(), into.data(), own.size(), type(own), by, made);
        };
    }

    template <typename T, typename U> auto exscan_of(span<T> own, span<U> into) const {
        same_length(own, into);
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_exscan(of, own.data(), into.data(), own.size(), type(own), by, made);
        };
    }
};

} // namespace detail

} // namespace dayfly

#endif
