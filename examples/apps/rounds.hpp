// Measures variants of a computation in turns, and prints what was measured as one JSON object on a line.
#ifndef DAYFLY_APPS_ROUNDS_HPP
#define DAYFLY_APPS_ROUNDS_HPP

#include <dayfly/dayfly.hpp>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace apps {

template <typename Body> double milliseconds(Body body) {
    const auto begun = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
}

inline double median(std::vector<double> times) {
    if (times.empty()) {
        return 0;
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
}

// The processors that this process may use, in ascending order.
inline std::vector<int> processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> found;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int each = 0; each < CPU_SETSIZE; each++) {
            if (CPU_ISSET(each, &set)) {
                found.push_back(each);
            }
        }
    }
    return found;
}

// Keeps the calling thread, and threads that it starts from now on, on one processor. Rank r takes the r-th.
inline void pin(int rank) {
    const std::vector<int> usable = processors();
    if (usable.empty()) {
        return;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(usable[static_cast<std::size_t>(rank) % usable.size()], &set);
    static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

// A generator of the same numbers in every run.
class numbers {
public:
    std::uint64_t next() { return state_ = state_ * 6364136223846793005u + 1442695040888963407u; }
    // From 0 to 1.
    double fraction() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }

private:
    std::uint64_t state_ = 1;
};

// The times of variants that took turns.
class report {
public:
    void add(const std::string &variant, double milliseconds) {
        for (auto &[name, times] : rounds_) {
            if (name == variant) {
                times.push_back(milliseconds);
                return;
            }
        }
        rounds_.push_back({variant, {milliseconds}});
    }
    void set(const std::string &name, double value) { values_.push_back({name, value}); }
    void check(bool is_right) { is_right_ = is_right_ && is_right; }
    bool is_right() const { return is_right_; }

    void print() const {
        std::printf("{\"checked\": %s, \"rounds\": {", is_right_ ? "true" : "false");
        const char *separator = "";
        for (const auto &[name, times] : rounds_) {
            std::printf("%s\"%s\": [", separator, name.c_str());
            separator = "";
            for (const double each : times) {
                std::printf("%s%.6f", separator, each);
                separator = ", ";
            }
            std::printf("]");
            separator = ", ";
        }
        std::printf("}");
        for (const auto &[name, value] : values_) {
            std::printf(", \"%s\": %.9g", name.c_str(), value);
        }
        std::printf("}\n");
        std::fflush(stdout);
    }

private:
    std::vector<std::pair<std::string, std::vector<double>>> rounds_;
    std::vector<std::pair<std::string, double>> values_;
    bool is_right_ = true;
};

// What a call costs that computes nothing: the median of a small one, and the time of a byte there and back.
inline void measure_calls(dayfly::invoker &workers, report &found) {
    constexpr std::size_t small = 64, large = 1 << 20;
    constexpr int calls = 30;
    std::vector<char> in(large, 'x'), out(large);
    std::vector<double> of_small, of_large;
    for (int call = 0; call < calls; call++) {
        of_small.push_back(milliseconds([&] { workers.call("echo", in.data(), small, out.data(), small); }));
        of_large.push_back(milliseconds([&] { workers.call("echo", in.data(), large, out.data(), large); }));
    }
    found.check(in == out);
    const double latency = median(of_small);
    found.set("call_ms", latency);
    // There and back: two bytes travel for each byte of the input.
    found.set("ns_per_byte", std::max(0.0, median(of_large) - latency) * 1e6 / (2.0 * large));
}

} // namespace apps

#endif
