// An MPI program whose ranks have workers if DAYFLY_MANAGER names a manager.
#ifndef DAYFLY_APPS_RANKS_HPP
#define DAYFLY_APPS_RANKS_HPP

#include "rounds.hpp"

#include <dayfly/mpi.hpp>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>

namespace apps {

// Initialises MPI and pins each rank to a processor of its own. Ends MPI when it goes.
class ranks {
public:
    ranks(int *argc, char ***argv, const std::string &library, std::size_t bytes) {
        dayfly::mpi::accelerator_options options;
        options.library = library;
        options.bytes = bytes;
        options.lease = dayfly::mpi::accelerator_options::warm();
        const char *manager = std::getenv("DAYFLY_MANAGER");
        wants_workers_ = manager != nullptr && *manager != '\0';
        MPI_Init(argc, argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
        pin(rank_);
        // After the rank is pinned, so that the threads of its workers share its processor.
        accelerator_ = std::make_unique<dayfly::mpi::accelerator>(MPI_COMM_WORLD, std::move(options));
    }
    ranks(const ranks &) = delete;
    ranks &operator=(const ranks &) = delete;
    ~ranks() {
        accelerator_->finish();
        MPI_Finalize();
    }

    int rank() const { return rank_; }
    int size() const { return size_; }
    // Whether every rank is to have workers.
    bool wants_workers() const { return wants_workers_; }
    // The workers of this rank.
    dayfly::invoker &workers() { return accelerator_->workers(); }

    // Waits for the workers. Throws if there are none after 30 seconds.
    void await_workers() {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        for (int is_late = 0; accelerator_->exchange().with_lease < size_;) {
            is_late = std::chrono::steady_clock::now() > until;
            MPI_Bcast(&is_late, 1, MPI_INT, 0, MPI_COMM_WORLD);
            if (is_late != 0) {
                throw std::runtime_error("no workers: " + accelerator_->refusal());
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        for (const char *name : {"echo", "multiply", "keep", "sweep", "fall", "scan"}) {
            workers().declare(name, dayfly::form::checked);
        }
    }
    // Begins a superstep: takes new workers into use and drops lost ones.
    void exchange() { static_cast<void>(accelerator_->exchange()); }

private:
    int rank_ = 0, size_ = 1;
    bool wants_workers_ = false;
    std::unique_ptr<dayfly::mpi::accelerator> accelerator_;
};

// Runs the program, and prints its error. Returns its exit status.
template <typename Body> int run_ranks(Body body) {
    try {
        return body();
    } catch (const dayfly::error &error) {
        std::fprintf(stderr, "%s [%s] %s\n", error.what(), error.name(), error.remedy());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    // Other ranks would wait for this one.
    std::_Exit(1);
}

} // namespace apps

#endif
