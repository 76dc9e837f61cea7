// Prices options from a file on all workers of a lease, and prints the seconds that this took:
//     blackscholes <library> <options> <prices> <workers>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <dayfly/dayfly.hpp>
#include <vector>

struct option {
    double spot, strike, years, rate, volatility;
};

static std::vector<option> read(const char *path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    std::vector<option> options(static_cast<std::size_t>(file.tellg()) / sizeof(option));
    file.seekg(0);
    file.read(reinterpret_cast<char *>(options.data()), static_cast<std::streamsize>(options.size() * sizeof(option)));
    return options;
}

int main(int argc, char **argv) try {
    if (argc != 5) {
        std::cerr << "usage: " << argv[0] << " <library> <options> <prices> <workers>\n";
        return 2;
    }
    const std::vector<option> options = read(argv[2]);
    std::vector<double> prices(options.size());
    constexpr std::size_t chunk = 50000;

    dayfly::invoker invoker;
    dayfly::lease_options wanted;
    wanted.workers = static_cast<std::uint32_t>(std::stoul(argv[4]));
    invoker.allocate(argv[1], wanted);
    invoker.declare("blackscholes", dayfly::form::checked);
    invoker.call("blackscholes", options.data(), sizeof(option), prices.data(), sizeof(double)); // loads the function

    const auto start = std::chrono::steady_clock::now();
    std::vector<dayfly::future<std::size_t>> futures;
    for (std::size_t at = 0; at < options.size(); at += chunk) {
        const std::size_t count = std::min(chunk, options.size() - at);
        futures.push_back(invoker.submit<double>("blackscholes", &options[at], count * sizeof(option), &prices[at],
                                                 count * sizeof(double)));
    }
    std::size_t priced = 0;
    for (auto &future : futures) {
        priced += future.get();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;

    std::ofstream file(argv[3], std::ios::binary);
    file.write(reinterpret_cast<const char *>(prices.data()), static_cast<std::streamsize>(priced * sizeof(double)));
    std::cout << took.count() << '\n';
} catch (const dayfly::error &error) {
    std::cerr << error.what() << " [" << error.name() << "] " << error.remedy() << '\n';
    return 1;
}
