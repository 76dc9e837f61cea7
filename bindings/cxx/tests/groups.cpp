// Tests of the C++ headers for groups, in each rank: dayfly run --ranks N ./groups [mismatch|die], or ./groups meet
// RENDEZVOUS KEY RANKS without `dayfly run`.
#include "check.hpp"

#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iostream>
#include <dayfly/dayfly.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

using dayfly::operation;

namespace {

// Returns the code and the message of an error.
template <typename Body> std::string message_of(dfly_status code, Body body) {
    try {
        body();
    } catch (const dayfly::error &error) {
        if (error.code() != code) {
            std::fprintf(stderr, "%s instead of %s: %s\n", error.name(), dfly_error_name(code), error.what());
            std::exit(1);
        }
        return error.what();
    }
    std::fprintf(stderr, "no %s\n", dfly_error_name(code));
    std::exit(1);
}

bool says(const std::string &message, const std::string &words) { return message.find(words) != std::string::npos; }

double element(std::uint32_t rank, std::size_t i) { return static_cast<double>((i * 7 + rank * 13) % 101); }

std::vector<double> elements(std::uint32_t rank, std::size_t count) {
    std::vector<double> made(count);
    for (std::size_t i = 0; i < count; i++) {
        made[i] = element(rank, i);
    }
    return made;
}

std::vector<double> total(std::uint32_t ranks, std::size_t count) {
    std::vector<double> sum(count);
    for (std::uint32_t rank = 0; rank < ranks; rank++) {
        for (std::size_t i = 0; i < count; i++) {
            sum[i] += element(rank, i);
        }
    }
    return sum;
}

// Returns the sum of `value` over all ranks, with the datatype deduced.
template <typename T> void adds_up(const dayfly::group &group, T value) {
    T want{};
    for (std::uint32_t rank = 0; rank < group.size(); rank++) {
        want = static_cast<T>(want + value);
    }
    HOLDS(group.allreduce(value, operation::sum) == want);
}

void datatypes_are_deduced(const dayfly::group &group) {
    adds_up<signed char>(group, -1);
    adds_up<char>(group, 1);
    adds_up<short>(group, -2);
    adds_up<int>(group, 3);
    adds_up<long>(group, -4);
    adds_up<long long>(group, 5);
    adds_up<unsigned char>(group, 6);
    adds_up<unsigned short>(group, 7);
    adds_up<unsigned>(group, 8);
    adds_up<unsigned long>(group, 9);
    adds_up<std::size_t>(group, 10);
    adds_up<float>(group, 0.5f);
    adds_up<double>(group, 0.25);
    adds_up<std::complex<float>>(group, {1, -2});
    adds_up<std::complex<double>>(group, {0.5, 3});
    HOLDS(group.allreduce(group.rank() == 0, operation::logical_or));
    HOLDS(group.allreduce(dayfly::with_place<double>{-1.0 * group.rank(), group.rank()}, operation::max_at).place == 0);
    HOLDS(group.allreduce(dayfly::with_place<std::int64_t>{7, group.rank()}, operation::min_at).place == 0);
}

void contiguous_containers_are_buffers(const dayfly::group &group) {
    const std::uint32_t next = (group.rank() + 1) % group.size();
    const std::uint32_t last = (group.rank() + group.size() - 1) % group.size();
    double array[3] = {1.0 * group.rank(), 2, 3}, came[5];
    std::array<double, 3> standard{};
    dayfly::message message = group.sendrecv(array, next, 1, came, last, 1);
    HOLDS(message.source == last && message.tag == 1 && message.count<double>() == 3 && came[0] == last);
    group.sendrecv(dayfly::span<double>(array, 3), next, 2, standard, last, dayfly::any_tag);
    HOLDS(standard[0] == last && standard[2] == 3);
    std::string text = group.rank() == 0 ? "from rank 0" : "           ";
    group.bcast(text);
    HOLDS(text == "from rank 0");
    int number = static_cast<int>(group.rank());
    group.bcast(number, group.size() - 1);
    HOLDS(number == static_cast<int>(group.size()) - 1);
    group.send(number, group.rank(), 9);
    HOLDS(group.probe(group.rank(), 9).length == sizeof number && group.iprobe(group.rank(), 9));
    HOLDS(!group.iprobe(dayfly::any_rank, 10));
    std::byte bytes[1];
    HOLDS(says(message_of(DFLY_TRUNCATED, [&] { group.recv(bytes, group.rank(), 9); }), "4 bytes"));
    group.send(number, dayfly::no_rank);
    HOLDS(group.recv(number, dayfly::no_rank).source == dayfly::no_rank);
    group.barrier();
}

void collectives_move_the_expected_elements(const dayfly::group &group) {
    const std::uint32_t rank = group.rank(), size = group.size(), root = size - 1;
    const std::vector<double> own = elements(rank, 5);
    std::vector<double> all, part(5), sums = total(size, 5);
    for (std::uint32_t r = 0; r < size; r++) {
        for (std::size_t i = 0; i < 5; i++) {
            all.push_back(element(r, i));
        }
    }
    HOLDS(group.allgather(own) == all);
    HOLDS(group.gather(own, root) == (rank == root ? all : std::vector<double>()));
    group.scatter(all, part, root);
    HOLDS(part == own);
    group.allreduce(own, part, operation::sum);
    HOLDS(part == sums);
    group.reduce(own, part, operation::sum, 0);
    HOLDS(rank != 0 || part == sums);
    group.scan(own, part, operation::sum);
    HOLDS(part == total(rank + 1, 5));
    part.assign(5, -1);
    group.exscan(own, part, operation::sum);
    HOLDS(part == (rank == 0 ? std::vector<double>(5, -1) : total(rank, 5)));
    part = own;
    group.allreduce(part, part, operation::sum); // in place
    HOLDS(part == sums);

    std::vector<double> long_sums = total(size, 2 * size), mine(2), sent(size * 2), back(size * 2);
    group.reduce_scatter(elements(rank, 2 * size), mine, operation::sum);
    HOLDS(mine[0] == long_sums[2 * rank] && mine[1] == long_sums[2 * rank + 1]);
    for (std::size_t at = 0; at < sent.size(); at++) {
        sent[at] = rank * 100.0 + static_cast<double>(at);
    }
    group.alltoall(sent, back);
    for (std::size_t at = 0; at < back.size(); at++) {
        HOLDS(back[at] == static_cast<double>(at / 2 * 100 + 2 * rank + at % 2));
    }

    // Rank r has r + 1 elements. The block of the last rank comes first in memory.
    std::vector<std::size_t> counts(size), places(size), equal(size, rank + 1);
    std::size_t room = 0;
    for (std::uint32_t r = size; r-- > 0;) {
        counts[r] = r + 1;
        places[r] = room;
        room += counts[r];
    }
    const std::vector<double> few = elements(rank, rank + 1);
    std::vector<double> seen(room), again(rank + 1), sorted;
    for (std::uint32_t r = 0; r < size; r++) {
        for (double value : elements(r, r + 1)) {
            sorted.push_back(value);
        }
    }
    group.gatherv(few, seen, counts, 0, places);
    group.scatterv(seen, counts, again, 0, places);
    HOLDS(again == few);
    group.allgatherv(few, seen, counts);
    HOLDS(seen == sorted);
    std::vector<double> from_all(size * (rank + 1));
    group.alltoallv(sorted, counts, from_all, equal);
    for (std::size_t at = 0; at < from_all.size(); at++) {
        HOLDS(from_all[at] == few[at % (rank + 1)]);
    }
}

struct thrown : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void functions_are_operations(const dayfly::group &group) {
    const double rank = group.rank();
    double norm = 0;
    for (std::uint32_t r = 0; r < group.size(); r++) {
        norm = std::hypot(norm, r);
    }
    const auto hypot = [](double a, double b) { return std::hypot(a, b); };
    HOLDS(std::abs(group.allreduce(rank, dayfly::commutative(hypot)) - norm) < 1e-12);
    // Returns the first value that is not zero, so that the order of the ranks matters.
    int calls = 0;
    const auto first = [&calls](double a, double b) {
        calls++;
        return a != 0 ? a : b;
    };
    HOLDS(group.allreduce(rank, first) == (group.size() > 1 ? 1 : 0));
    HOLDS(group.allreduce(calls, operation::max) > 0 || group.size() == 1);
    double found = 0;
    dayfly::request going = group.iallreduce(rank, found, first);
    going.wait();
    HOLDS(found == (group.size() > 1 ? 1 : 0));
    going = group.iallreduce(rank, found, dayfly::commutative(hypot));
    going.wait();
    HOLDS(std::abs(found - norm) < 1e-12);
    // An exception is rethrown on the ranks where the function ran, and the group remains usable.
    bool threw = group.size() == 1;
    try {
        group.allreduce(rank, [](double, double) -> double { throw thrown("on purpose"); });
    } catch (const thrown &) {
        threw = true;
    }
    HOLDS(group.allreduce(threw, operation::logical_or));
}

void requests_end_and_can_be_cancelled(const dayfly::group &group) {
    const std::uint32_t next = (group.rank() + 1) % group.size();
    const std::uint32_t last = (group.rank() + group.size() - 1) % group.size();
    const std::vector<double> out = elements(group.rank(), 100000);
    std::vector<double> in(out.size()), all(group.size()), sum(1);
    double rank = group.rank();
    {
        dayfly::request receiving = group.irecv(in, last, 3), sending = group.isend(out, next, 3);
        dayfly::request gathering = group.iallgather(rank, all), adding = group.iallreduce(rank, sum, operation::sum);
        dayfly::request barrier = group.ibarrier();
        HOLDS(receiving.wait().count<double>() == in.size());
        sending.wait(), gathering.wait(), adding.wait(), barrier.wait();
        HOLDS(receiving.test()->source == last);
    }
    HOLDS(in == elements(last, in.size()) && sum[0] == group.size() * (group.size() - 1) / 2.0);
    for (std::uint32_t r = 0; r < group.size(); r++) {
        HOLDS(all[r] == r);
    }
    {
        dayfly::request never = group.irecv(in, last, 4);
        HOLDS(!never.test());
    }
    HOLDS(in == elements(last, in.size()));
}

void every_collective_runs_in_the_background(const dayfly::group &group) {
    const std::vector<std::size_t> ones(group.size(), 1);
    const std::vector<double> own = elements(group.rank(), group.size());
    const double one = own[0];
    const auto alike = [&](auto now, auto later) {
        std::vector<double> a(group.size()), b(group.size());
        now(a);
        later(b).wait();
        HOLDS(a == b);
    };
    const auto first = [](std::vector<double> &into) { return dayfly::span<double>(into.data(), 1); };
    alike([&](auto &to) { group.bcast(to, 0); }, [&](auto &to) { return group.ibcast(to, 0); });
    alike([&](auto &to) { group.gather(one, to, 0); }, [&](auto &to) { return group.igather(one, to, 0); });
    alike([&](auto &to) { group.gatherv(one, to, ones, 0); },
          [&](auto &to) { return group.igatherv(one, to, ones, 0); });
    alike([&](auto &to) { group.scatter(own, first(to), 0); },
          [&](auto &to) { return group.iscatter(own, first(to), 0); });
    alike([&](auto &to) { group.scatterv(own, ones, first(to), 0); },
          [&](auto &to) { return group.iscatterv(own, ones, first(to), 0); });
    alike([&](auto &to) { group.allgather(one, to); }, [&](auto &to) { return group.iallgather(one, to); });
    alike([&](auto &to) { group.allgatherv(one, to, ones); },
          [&](auto &to) { return group.iallgatherv(one, to, ones); });
    alike([&](auto &to) { group.alltoall(own, to); }, [&](auto &to) { return group.ialltoall(own, to); });
    alike([&](auto &to) { group.alltoallv(own, ones, to, ones); },
          [&](auto &to) { return group.ialltoallv(own, ones, to, ones); });
    alike([&](auto &to) { group.reduce(own, to, operation::max, 0); },
          [&](auto &to) { return group.ireduce(own, to, operation::max, 0); });
    alike([&](auto &to) { group.reduce_scatter(own, first(to), ones, operation::sum); },
          [&](auto &to) { return group.ireduce_scatter(own, first(to), ones, operation::sum); });
    alike([&](auto &to) { group.scan(own, to, operation::sum); },
          [&](auto &to) { return group.iscan(own, to, operation::sum); });
    alike([&](auto &to) { group.exscan(own, to, operation::sum); },
          [&](auto &to) { return group.iexscan(own, to, operation::sum); });
}

void parts_are_groups(const dayfly::group &group) {
    std::optional<dayfly::group> half = group.split(group.rank() % 2);
    HOLDS(half && half->rank() == group.rank() / 2 && half->member(half->rank()) == group.rank());
    std::optional<dayfly::group> rest = group.split(group.rank() ? std::optional<std::uint32_t>(0) : std::nullopt);
    HOLDS(rest.has_value() == (group.rank() != 0));
    dayfly::group same = group.dup();
    group.send(1, group.rank(), 2);
    HOLDS(!same.iprobe(group.rank(), 2) && group.iprobe(group.rank(), 2));
}

void misuse_is_thrown(const dayfly::group &group) {
    std::vector<double> one(1), three(3);
    const auto refused = [](const char *words, auto body) { HOLDS(says(message_of(DFLY_INVALID_REQUEST, body), words)); };
    refused("as many elements as each rank gives", [&] { group.allreduce(one, three, operation::sum); });
    refused("bitwise or of f64", [&] { group.allreduce(1.0, operation::bit_or); });
    refused("there is no rank", [&] { group.send(one, group.size()); });
    refused("one count for each rank", [&] { group.allgatherv(one, three, {}); });
    refused("more elements than the buffer has",
            [&] { group.allgatherv(one, three, std::vector<std::size_t>(group.size(), SIZE_MAX)); });
    refused("as many elements as all ranks give", [&] { group.allgather(three, one); });
    group.barrier();
}

void mismatch(const dayfly::group &group) {
    const std::string said = message_of(DFLY_MISMATCH, [&] {
        group.rank() == 0 ? (void)group.allreduce(1, operation::sum) : (void)group.allgather(1);
    });
    HOLDS(says(said, "rank 0 called allreduce of 4 bytes with sum of i32") && says(said, "called allgather of 4 bytes"));
}

void die(const dayfly::group &group) {
    const std::uint32_t victim = group.size() - 1;
    const std::string name = "rank " + std::to_string(victim);
    int got = 0;
    // This rank dies while all others wait for it.
    for (std::uint32_t rank = 0; group.rank() == victim && rank < victim; rank++) {
        group.recv(got, rank, 1);
    }
    if (group.rank() == victim) {
        std::raise(SIGKILL);
    }
    group.send(got, victim, 1);
    HOLDS(says(message_of(DFLY_RANK_LOST, [&] { group.recv(got, victim); }), name));
    HOLDS(says(message_of(DFLY_RANK_LOST, [&] { group.barrier(); }), name));
    dayfly::group rest = group.shrink();
    HOLDS(rest.size() == victim && rest.allreduce(1u, operation::sum) == victim);
}

dayfly::group meet(char **where) {
    dayfly::group_options options;
    options.rendezvous = where[0];
    options.key = where[1];
    options.ranks = static_cast<std::uint32_t>(std::atoi(where[2]));
    options.name = "shells";
    options.spin = std::chrono::microseconds(500);
    options.deadline = std::chrono::seconds(2);
    options.run = "1";
    options.secret = "short";
    message_of(DFLY_INVALID_REQUEST, [&] { dayfly::group(options).barrier(); });
    options.secret = "00112233445566778899aabbccddeeff";
    {
        dayfly::group impatient(options);
        int nothing = 0;
        message_of(DFLY_TIMED_OUT, [&] { impatient.recv(nothing, dayfly::any_rank, 55); });
    }
    options.run = "2";
    options.deadline = std::chrono::minutes(1);
    return dayfly::group(options);
}

} // namespace

int main(int argc, char **argv) try {
    const std::string what = argc > 1 ? argv[1] : "";
    const dayfly::group group = what == "meet" ? meet(argv + 2) : dayfly::group();
    if (what == "mismatch") {
        mismatch(group);
    } else if (what == "die") {
        die(group);
    } else {
        datatypes_are_deduced(group);
        contiguous_containers_are_buffers(group);
        collectives_move_the_expected_elements(group);
        functions_are_operations(group);
        requests_end_and_can_be_cancelled(group);
        every_collective_runs_in_the_background(group);
        parts_are_groups(group);
        misuse_is_thrown(group);
    }
    std::cout << "all held on " << group.rank() << " of " << group.size() << std::endl;
} catch (const dayfly::error &error) {
    std::cerr << error.what() << " [" << error.name() << "] " << error.remedy() << std::endl;
    return 1;
}
