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

#include "error.hpp"

#include <algorithm>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dayfly {

// Any rank, no rank and any tag, as in dayfly.h.
constexpr std::uint32_t any_rank = DFLY_ANY_RANK;
constexpr std::uint32_t no_rank = DFLY_NO_RANK;
constexpr std::uint32_t any_tag = DFLY_ANY_TAG;

// Reduction operations. A function of two elements is accepted too: see `commutative`.
enum class operation : std::uint32_t {
    sum = DFLY_SUM,
    product = DFLY_PRODUCT,
    min = DFLY_MIN,
    max = DFLY_MAX,
    logical_and = DFLY_LOGICAL_AND,
    logical_or = DFLY_LOGICAL_OR,
    logical_xor = DFLY_LOGICAL_XOR,
    bit_and = DFLY_BIT_AND,
    bit_or = DFLY_BIT_OR,
    bit_xor = DFLY_BIT_XOR,
    min_at = DFLY_MIN_AT,
    max_at = DFLY_MAX_AT
};

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
template <typename Buffer> auto lasting(std::remove_reference_t<Buffer> &buffer) {
    static_assert(std::is_lvalue_reference_v<Buffer> || is_span<std::remove_cv_t<Buffer>>::value,
                  "this buffer is gone before the operation is over: name it, or give a dayfly::span");
    return view(buffer);
}

template <typename Own, typename Into> constexpr void check_types() {
    static_assert(!std::is_const_v<Into>, "what is received needs memory that may be written to");
    static_assert(std::is_same_v<std::remove_cv_t<Own>, Into>, "all buffers of an operation are of one type");
}

inline void expect(bool holds, const char *otherwise) {
    if (!holds) {
        throw error(DFLY_INVALID_REQUEST, otherwise);
    }
}

// A reduction function of the program during its operation, and the exception that it threw.
class combining {
public:
    combining(const combining &) = delete;
    combining &operator=(const combining &) = delete;
    virtual ~combining() {
        if (number_ != 0) {
            dfly_operation_free(number_);
        }
    }

    std::uint32_t number() const noexcept { return number_; }
    void rethrow() {
        if (std::exception_ptr thrown = std::exchange(thrown_, nullptr)) {
            std::rethrow_exception(thrown);
        }
    }

protected:
    combining(dfly_combine combine, bool commutative) { check(dfly_operation_create(combine, this, commutative, &number_)); }

    std::exception_ptr thrown_;

private:
    std::uint32_t number_ = 0;
};

template <typename F> struct commutative_function {
    F function;
};

template <typename F> struct unwrapped {
    static constexpr bool commutes = false;
    static const F &function(const F &operation) { return operation; }
};
template <typename F> struct unwrapped<commutative_function<F>> {
    static constexpr bool commutes = true;
    static const F &function(const commutative_function<F> &operation) { return operation.function; }
};

template <typename T, typename Operation> class own_operation final : public combining {
public:
    explicit own_operation(const Operation &operation)
        : combining(&own_operation::combine, unwrapped<Operation>::commutes), operation_(operation) {}

private:
    // The caller is C code that cannot unwind, so an exception is stored until the collective ends.
    static void combine(void *user, const void *left, void *right, std::size_t count, std::uint32_t) noexcept {
        own_operation &self = *static_cast<own_operation *>(static_cast<combining *>(user));
        const T *from = static_cast<const T *>(left);
        T *into = static_cast<T *>(right);
        try {
            for (std::size_t i = 0; i < count; i++) {
                into[i] = unwrapped<Operation>::function(self.operation_)(from[i], into[i]);
            }
        } catch (...) {
            self.thrown_ = std::current_exception();
        }
    }

    Operation operation_;
};

} // namespace detail

// Wraps a commutative reduction function, which allows a faster order of reduction. A function without this wrapper
// must only be associative.
template <typename F> detail::commutative_function<std::decay_t<F>> commutative(F &&function) {
    return {std::forward<F>(function)};
}

// An operation in the background. Its destructor cancels an operation that has not completed. One thread at a time may
// use it.
class request {
public:
    explicit request(dfly_request *handle, std::shared_ptr<detail::combining> operation = nullptr)
        : operation_(std::move(operation)), handle_(handle) {}
    request(request &&other) noexcept = default;
    request &operator=(request &&other) noexcept {
        handle_ = std::move(other.handle_);
        operation_ = std::move(other.operation_);
        return *this;
    }

    // Waits until the operation completes. Returns the envelope of a receive.
    message wait() {
        message found;
        const dfly_status status = dfly_request_wait(get(), &found);
        rethrow();
        detail::check(status);
        return found;
    }

    // Returns the envelope if the operation has completed, without waiting.
    std::optional<message> test() {
        message found;
        bool over = false;
        const dfly_status status = dfly_request_test(get(), &found, &over);
        rethrow();
        detail::check(status);
        return over ? std::optional<message>(found) : std::nullopt;
    }

    dfly_request *get() const noexcept { return handle_.get(); }

private:
    void rethrow() const {
        if (operation_) {
            operation_->rethrow();
        }
    }

    // Destroyed after the request that calls it, also on assignment.
    std::shared_ptr<detail::combining> operation_;
    std::unique_ptr<dfly_request, detail::closer> handle_;
};

// How a process that `dayfly run` did not start finds its group.
struct group_options {
    std::string rendezvous;            // host:port of `dayfly rendezvous`, or of a manager
    std::string key = {};              // public key of the rendezvous; empty: an impostor can keep the ranks apart
    std::string name;                  // of the group
    std::string secret;                // shared by all ranks: at least 16 bytes, in hexadecimal
    std::uint32_t ranks = 0;           // number of ranks
    std::uint32_t rank = any_rank;     // this process's rank
    std::string run = {};              // ranks of different runs do not meet
    std::chrono::seconds patience = std::chrono::seconds(30);    // limit until all have joined
    std::chrono::seconds deadline = std::chrono::seconds(3600);  // limit of one operation
    std::chrono::microseconds spin = std::chrono::microseconds(DFLY_FOR_EVER); // polling before sleeping
    bool trust_fabric = false;         // the network is trusted: messages are not encrypted
    std::string store = {};            // URL of a store for ranks without a direct connection; equal on all ranks
    std::string channel = {};          // "direct", or "stored" for messages only through the store
    std::string fabric = {};           // libfabric provider between hosts; requires trust_fabric; equal on all ranks
    bool lazily = false;               // connect two ranks when one first needs the other; equal on all ranks

    // Returns the options for the C library. The result points into this object and is valid as long as it.
    dfly_group_options raw() const {
        dfly_group_options options;
        detail::check(dfly_group_options_init(&options));
        options.rendezvous = rendezvous.c_str();
        options.key = key.empty() ? nullptr : key.c_str();
        options.name = name.c_str();
        options.run = run.c_str();
        options.secret = secret.c_str();
        options.ranks = ranks;
        options.rank = rank;
        options.patience_s = narrow(patience.count());
        options.deadline_s = narrow(deadline.count());
        options.spin_us = narrow(spin.count());
        options.trust_fabric = trust_fabric;
        options.store = store.empty() ? nullptr : store.c_str();
        options.channel = channel.empty() ? nullptr : channel.c_str();
        options.fabric = fabric.empty() ? nullptr : fabric.c_str();
        options.lazily = lazily;
        return options;
    }

private:
    static std::uint32_t narrow(std::int64_t value) {
        return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value, 0, DFLY_FOR_EVER));
    }
};

// A group of ranks that exchange messages, as one of them sees it. Thread-safe: threads take turns.
class group {
public:
    // Joins the group that `dayfly run` started this process in, else a group of one.
    group() : group(open([](dfly_group **handle) { return dfly_group_join(nullptr, handle); })) {}
    // Joins a group, and returns when all ranks have joined and are connected.
    explicit group(const group_options &options)
        : group(open([raw = options.raw()](dfly_group **handle) { return dfly_group_join(&raw, handle); })) {}
    explicit group(dfly_group *handle) : handle_(handle) {}

    std::uint32_t rank() const noexcept { return dfly_group_rank(get()); }
    std::uint32_t size() const noexcept { return dfly_group_size(get()); }
    dfly_group *get() const noexcept { return handle_.get(); }

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

    // Messages

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
        const auto room = alike(data, detail::view(into));
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
        const auto data = detail::lasting<Own>(own);
        return later([&](dfly_request **made) {
            return dfly_group_isend(get(), data.data(), data.size(), type(data), to, tag, made);
        });
    }

    template <typename Into>
    request irecv(Into &&into, std::uint32_t from = any_rank, std::uint32_t tag = any_tag) const {
        const auto room = writable(detail::lasting<Into>(into));
        return later([&](dfly_request **made) {
            return dfly_group_irecv(get(), room.data(), room.size(), type(room), from, tag, made);
        });
    }

    // Collectives: all ranks must call the same ones in the same order.

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
        return later(bcast_of(writable(detail::lasting<Buffer>(buffer)), root));
    }

    // Gathers the elements of all ranks to the root, in the order of the ranks. `into` is used at the root only.
    template <typename Own, typename Into> void gather(const Own &own, Into &&into, std::uint32_t root) const {
        now(gather_of(detail::view(own), detail::view(into), root));
    }
    template <typename Own, typename Into> request igather(Own &&own, Into &&into, std::uint32_t root) const {
        return later(gather_of(detail::lasting<Own>(own), detail::lasting<Into>(into), root));
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
            gatherv_of(detail::lasting<Own>(own), detail::lasting<Into>(into), counts, root, displacements));
    }

    // Distributes the root's elements in equal parts, in the order of the ranks. `all` is used at the root only.
    template <typename All, typename Into> void scatter(const All &all, Into &&into, std::uint32_t root) const {
        now(scatter_of(detail::view(all), detail::view(into), root));
    }
    template <typename All, typename Into> request iscatter(All &&all, Into &&into, std::uint32_t root) const {
        return later(scatter_of(detail::lasting<All>(all), detail::lasting<Into>(into), root));
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
        return later(scatterv_of(detail::lasting<All>(all), counts, detail::lasting<Into>(into), root, displacements));
    }

    // Gathers the elements of all ranks to all ranks, in the order of the ranks.
    template <typename Own, typename Into> void allgather(const Own &own, Into &&into) const {
        now(allgather_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into> request iallgather(Own &&own, Into &&into) const {
        return later(allgather_of(detail::lasting<Own>(own), detail::lasting<Into>(into)));
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
        return later(allgatherv_of(detail::lasting<Own>(own), detail::lasting<Into>(into), counts, displacements));
    }

    // Sends one part of `own` to each rank, and receives one part from each. All parts have the same length.
    template <typename Own, typename Into> void alltoall(const Own &own, Into &&into) const {
        now(alltoall_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into> request ialltoall(Own &&own, Into &&into) const {
        return later(alltoall_of(detail::lasting<Own>(own), detail::lasting<Into>(into)));
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
        return later(alltoallv_of(detail::lasting<Own>(own), sent, detail::lasting<Into>(into), received,
                                  sent_displacements, received_displacements));
    }

    // Reduces the elements of all ranks to the root. `into` is used at the root only.
    template <typename Own, typename Into, typename Operation>
    void reduce(const Own &own, Into &&into, const Operation &by, std::uint32_t root) const {
        combine<Own>(by, reduce_of(detail::view(own), detail::view(into), root));
    }
    template <typename Own, typename Into, typename Operation>
    request ireduce(Own &&own, Into &&into, const Operation &by, std::uint32_t root) const {
        return icombine<Own>(by, reduce_of(detail::lasting<Own>(own), detail::lasting<Into>(into), root));
    }

    // Reduces the elements of all ranks to all ranks.
    template <typename Own, typename Into, typename Operation>
    void allreduce(const Own &own, Into &&into, const Operation &by) const {
        combine<Own>(by, allreduce_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into, typename Operation>
    request iallreduce(Own &&own, Into &&into, const Operation &by) const {
        return icombine<Own>(by, allreduce_of(detail::lasting<Own>(own), detail::lasting<Into>(into)));
    }
    // As above, for one element. Returns the result.
    template <typename T, typename Operation> T allreduce(const T &own, const Operation &by) const {
        static_assert(detail::is_element<T>, "without a place for the result, this combines one element of each rank");
        T all{};
        allreduce(own, all, by);
        return all;
    }

    // Reduces the elements of all ranks, and gives each rank its part of the result: `counts[i]` elements to rank i, or
    // equal parts.
    template <typename Own, typename Into, typename Operation>
    void reduce_scatter(const Own &own, Into &&into, const std::vector<std::size_t> &counts, const Operation &by) const {
        combine<Own>(by, reduce_scatter_of(detail::view(own), detail::view(into), counts));
    }
    template <typename Own, typename Into, typename Operation>
    void reduce_scatter(const Own &own, Into &&into, const Operation &by) const {
        reduce_scatter(own, into, std::vector<std::size_t>(size(), detail::view(into).size()), by);
    }
    template <typename Own, typename Into, typename Operation>
    request ireduce_scatter(Own &&own, Into &&into, const std::vector<std::size_t> &counts, const Operation &by) const {
        return icombine<Own>(by, reduce_scatter_of(detail::lasting<Own>(own), detail::lasting<Into>(into), counts));
    }

    // Inclusive prefix reduction: reduces the elements of ranks 0 to this rank.
    template <typename Own, typename Into, typename Operation>
    void scan(const Own &own, Into &&into, const Operation &by) const {
        combine<Own>(by, scan_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into, typename Operation>
    request iscan(Own &&own, Into &&into, const Operation &by) const {
        return icombine<Own>(by, scan_of(detail::lasting<Own>(own), detail::lasting<Into>(into)));
    }

    // Exclusive prefix reduction: reduces the elements of the ranks before this one. `into` of rank 0 is not changed.
    template <typename Own, typename Into, typename Operation>
    void exscan(const Own &own, Into &&into, const Operation &by) const {
        combine<Own>(by, exscan_of(detail::view(own), detail::view(into)));
    }
    template <typename Own, typename Into, typename Operation>
    request iexscan(Own &&own, Into &&into, const Operation &by) const {
        return icombine<Own>(by, exscan_of(detail::lasting<Own>(own), detail::lasting<Into>(into)));
    }

private:
    template <typename View>
    using element = std::remove_cv_t<std::remove_pointer_t<decltype(std::declval<View>().data())>>;
    template <typename Own> using element_of = element<decltype(detail::view(std::declval<Own &>()))>;
    using counts_type = std::vector<std::size_t>;

    template <typename Open> static dfly_group *open(Open how) {
        dfly_group *handle = nullptr;
        detail::check(how(&handle));
        return handle;
    }

    template <typename T> static constexpr std::uint32_t type(span<T>) {
        return detail::datatype<std::remove_cv_t<T>>::value;
    }

    template <typename T> static span<T> writable(span<T> into) {
        detail::check_types<T, T>();
        return into;
    }
    template <typename T, typename U> static span<U> alike(span<T>, span<U> into) {
        detail::check_types<T, U>();
        return into;
    }

    template <typename Call> static void now(Call call) { detail::check(call(nullptr)); }
    template <typename Call> static request later(Call call, std::shared_ptr<detail::combining> by = nullptr) {
        dfly_request *made = nullptr;
        detail::check(call(&made));
        return request(made, std::move(by));
    }

    template <typename Own, typename Operation, typename Call> static void combine(const Operation &by, Call call) {
        if constexpr (std::is_same_v<Operation, operation>) {
            detail::check(call(static_cast<std::uint32_t>(by), nullptr));
        } else {
            detail::own_operation<element_of<const Own>, Operation> own(by);
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
            auto own = std::make_shared<detail::own_operation<element, Operation>>(by);
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
            detail::expect(next <= room && counts[at] <= room - next, "the counts are more than the buffer has room for");
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
        alike(own, into);
        detail::expect(rank() != root || into.size() == own.size() * size(),
                       "the root's buffer of a gather has as many elements as all ranks give");
        return [=, of = get()](dfly_request **made) {
            return dfly_group_gather(of, own.data(), own.size(), type(own), into.data(), root, made);
        };
    }

    template <typename T, typename U>
    auto gatherv_of(span<T> own, span<U> into, const counts_type &counts, std::uint32_t root,
                    const counts_type &displacements) const {
        alike(own, into);
        if (rank() == root) {
            check_counts(counts, displacements, into.size());
        }
        return [=, of = get(), &counts, &displacements](dfly_request **made) {
            return dfly_group_gatherv(of, own.data(), own.size(), type(own), into.data(), start(counts),
                                    start(displacements), root, made);
        };
    }

    template <typename T, typename U> auto scatter_of(span<T> all, span<U> into, std::uint32_t root) const {
        alike(all, into);
        detail::expect(rank() != root || all.size() == into.size() * size(),
                       "the root's buffer of a scatter has as many elements as all ranks get");
        return [=, of = get()](dfly_request **made) {
            return dfly_group_scatter(of, all.data(), into.data(), into.size(), type(into), root, made);
        };
    }

    template <typename T, typename U>
    auto scatterv_of(span<T> all, const counts_type &counts, span<U> into, std::uint32_t root,
                     const counts_type &displacements) const {
        alike(all, into);
        if (rank() == root) {
            check_counts(counts, displacements, all.size());
        }
        return [=, of = get(), &counts, &displacements](dfly_request **made) {
            return dfly_group_scatterv(of, all.data(), start(counts), start(displacements), into.data(), into.size(),
                                     type(into), root, made);
        };
    }

    template <typename T, typename U> auto allgather_of(span<T> own, span<U> into) const {
        alike(own, into);
        detail::expect(into.size() == own.size() * size(),
                       "the buffer of an allgather has as many elements as all ranks give");
        return [=, of = get()](dfly_request **made) {
            return dfly_group_allgather(of, own.data(), own.size(), type(own), into.data(), made);
        };
    }

    template <typename T, typename U>
    auto allgatherv_of(span<T> own, span<U> into, const counts_type &counts, const counts_type &displacements) const {
        alike(own, into);
        check_counts(counts, displacements, into.size());
        return [=, of = get(), &counts, &displacements](dfly_request **made) {
            return dfly_group_allgatherv(of, own.data(), own.size(), type(own), into.data(), start(counts),
                                       start(displacements), made);
        };
    }

    template <typename T, typename U> auto alltoall_of(span<T> own, span<U> into) const {
        alike(own, into);
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
        alike(own, into);
        check_counts(sent, sent_displacements, own.size());
        check_counts(received, received_displacements, into.size());
        return [=, of = get(), &sent, &received, &sent_displacements, &received_displacements](dfly_request **made) {
            return dfly_group_alltoallv(of, own.data(), start(sent), start(sent_displacements), into.data(),
                                      start(received), start(received_displacements), type(own), made);
        };
    }

    template <typename T, typename U> static void as_many(span<T> own, span<U> into) {
        alike(own, into);
        detail::expect(own.size() == into.size(), "the result of a reduction has as many elements as each rank gives");
    }

    template <typename T, typename U> auto reduce_of(span<T> own, span<U> into, std::uint32_t root) const {
        alike(own, into);
        if (rank() == root) {
            as_many(own, into);
        }
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_reduce(of, own.data(), into.data(), own.size(), type(own), by, root, made);
        };
    }

    template <typename T, typename U> auto allreduce_of(span<T> own, span<U> into) const {
        as_many(own, into);
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_allreduce(of, own.data(), into.data(), own.size(), type(own), by, made);
        };
    }

    template <typename T, typename U>
    auto reduce_scatter_of(span<T> own, span<U> into, const counts_type &counts) const {
        alike(own, into);
        check_counts(counts, {}, own.size());
        detail::expect(into.size() == counts[rank()], "the result of a reduce_scatter is as long as this rank's count");
        return [=, of = get(), &counts](std::uint32_t by, dfly_request **made) {
            return dfly_group_reduce_scatter(of, own.data(), into.data(), counts.data(), type(own), by, made);
        };
    }

    template <typename T, typename U> auto scan_of(span<T> own, span<U> into) const {
        as_many(own, into);
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_scan(of, own.data(), into.data(), own.size(), type(own), by, made);
        };
    }

    template <typename T, typename U> auto exscan_of(span<T> own, span<U> into) const {
        as_many(own, into);
        return [=, of = get()](std::uint32_t by, dfly_request **made) {
            return dfly_group_exscan(of, own.data(), into.data(), own.size(), type(own), by, made);
        };
    }

    std::unique_ptr<dfly_group, detail::closer> handle_;
};

} // namespace dayfly

#endif
