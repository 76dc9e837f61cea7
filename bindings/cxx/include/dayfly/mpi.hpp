// Leased workers for the ranks of an MPI program. A header over dayfly.hpp and the program's own MPI.
//
//     dayfly::mpi::accelerator_options options;
//     options.library = "./libprice.so";
//     dayfly::mpi::accelerator accelerator(options);     // leases workers in the background
//     MPI_Init(&argc, &argv);
//     accelerator.attach(MPI_COMM_WORLD);
//     for (...) {                                        // supersteps
//         accelerator.exchange();                        // pairs ranks with workers and ranks without
//         auto loop = plan.share(accelerator.workers(), "price", in, out, count, 1024);
//         ...
//     }
//     accelerator.finish();
//     MPI_Finalize();
//
// A rank that gets no lease is paired with one that has a lease. The host of that rank then runs a private node, from
// which the rank without a lease takes its workers: the work of both is spread over the job and the leases. A private
// node ends with the rank that started it, however that ends.
#ifndef DAYFLY_MPI_HPP
#define DAYFLY_MPI_HPP

#include "offload.hpp"
#include "private_node.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dayfly {
namespace mpi {

// What each rank leases.
struct accelerator_options {
    std::string library;                // of the functions
    std::size_t bytes = 0;              // expected size of a payload
    lease_options lease = {};           // of a rank
    lease_options private_lease = warm(); // of a rank without a lease, from a private node
    // Connection file or state directory of the manager; empty for DAYFLY_MANAGER. With neither no rank gets a lease.
    std::string manager = {};
    bool private_nodes = true;
    // First pause after a refused request for a lease; each refusal doubles it, up to 64 times.
    std::chrono::milliseconds retry = std::chrono::milliseconds(100);

    static lease_options warm() {
        lease_options options;
        options.mode = mode::warm;
        return options;
    }
};

// How the ranks are served in a superstep.
struct pairing {
    int with_lease = 0;      // ranks with workers of their own lease
    int paired = 0;          // ranks without, which have a partner
    int with_private = 0;    // of these, ranks that have workers already
    int partner = -1;        // for a rank without a lease: the rank whose host serves it, or -1
};

// Workers for this rank. One thread at a time may use it; a thread of its own leases, and calls no MPI function.
class accelerator {
public:
    // Starts to lease in the background. MPI need not be initialised. Call `attach` later.
    explicit accelerator(accelerator_options options)
        : options_(std::move(options)), current_(std::make_unique<invoker>()) {
        const char *manager = std::getenv("DAYFLY_MANAGER");
        may_lease_ = !options_.manager.empty() || (manager != nullptr && *manager != '\0');
        wants_lease_ = may_lease_;
        thread_ = std::thread([this] { run(); });
    }
    // As above, and attaches. Collective.
    accelerator(MPI_Comm comm, accelerator_options options) : accelerator(std::move(options)) { attach(comm); }
    accelerator(const accelerator &) = delete;
    accelerator &operator=(const accelerator &) = delete;
    ~accelerator() { stop(); }

    // Learns which ranks share a host. Collective over `comm`.
    void attach(MPI_Comm comm) {
        MPI_Comm_dup(comm, &comm_);
        MPI_Comm_rank(comm_, &rank_);
        MPI_Comm_size(comm_, &size_);
        MPI_Comm host = MPI_COMM_NULL;
        MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
        leader_ = rank_;
        MPI_Bcast(&leader_, 1, MPI_INT, 0, host);
        int here = 0;
        MPI_Comm_size(host, &here);
        MPI_Comm_free(&host);
        char name[MPI_MAX_PROCESSOR_NAME];
        int length = 0;
        MPI_Get_processor_name(name, &length);
        if (here < size_) {
            host_name_.assign(name, static_cast<std::size_t>(length));
        }
        allowances_.assign(static_cast<std::size_t>(size_), std::string());
    }

    // The workers of this rank until the next `exchange`: of its lease, of a private node, or none.
    invoker &workers() noexcept { return *current_; }
    // Whether `workers` are those of this rank's own lease.
    bool has_lease() const noexcept { return has_lease_; }
    // Why the last request for a lease was refused; "" if none was.
    std::string refusal() const {
        std::lock_guard<std::mutex> lock(mutex_);
        return refusal_;
    }

    // Takes new workers into use, drops lost ones, and pairs the ranks. Collective; no call may be under way.
    pairing exchange() {
        take_up();
        std::string allowance = node_allowance();
        // A leader whose allowance the others do not know yet sends it.
        const bool is_news = allowance != allowances_[static_cast<std::size_t>(rank_)];
        const int own[] = {has_lease_ ? 1 : 0, leader_, is_news ? static_cast<int>(allowance.size()) : -1,
                           current_->remaining() > 0 ? 1 : 0};
        std::vector<int> all(static_cast<std::size_t>(size_) * 4);
        MPI_Allgather(own, 4, MPI_INT, all.data(), 4, MPI_INT, comm_);
        broadcast_news(all, allowance);
        return pair_up(all);
    }

    // Releases the workers and ends private nodes. Collective. Call it before MPI_Finalize.
    void finish() {
        if (comm_ == MPI_COMM_NULL) {
            return;
        }
        end_thread();
        current_ = std::make_unique<invoker>();
        fresh_.reset();
        MPI_Barrier(comm_); // then no rank uses a private node any more
        node_.reset();
        MPI_Comm_free(&comm_);
    }

private:
    using clock = std::chrono::steady_clock;
    // Starts of the private node, if it ends by itself.
    static constexpr int max_starts = 3;

    // Takes what the thread has leased, and drops workers that are lost.
    void take_up() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (current_->workers() > 0 && current_->remaining() == 0) {
            current_ = std::make_unique<invoker>();
            wants_lease_ = may_lease_;
            has_lease_ = false;
            wanted_ = in_use_ = std::string();
        }
        if (fresh_ && (fresh_is_lease_ || !has_lease_)) {
            has_lease_ = fresh_is_lease_;
            current_ = std::move(fresh_);
        }
        fresh_.reset();
        if (has_lease_) {
            in_use_.clear();
        }
        changed_.notify_all();
    }

    std::string node_allowance() {
        std::lock_guard<std::mutex> lock(mutex_);
        return allowance_;
    }

    // Sends allowances of private nodes to all ranks, if there are new ones.
    void broadcast_news(const std::vector<int> &all, const std::string &allowance) {
        std::vector<int> lengths(static_cast<std::size_t>(size_)), places(static_cast<std::size_t>(size_));
        int total = 0;
        bool has_news = false;
        for (std::size_t rank = 0; rank < lengths.size(); rank++) {
            const int length = all[rank * 4 + 2];
            has_news = has_news || length >= 0;
            lengths[rank] = std::max(length, 0);
            places[rank] = total;
            total += lengths[rank];
        }
        if (!has_news) {
            return;
        }
        std::string texts(static_cast<std::size_t>(total), '\0');
        MPI_Allgatherv(allowance.data(), lengths[static_cast<std::size_t>(rank_)], MPI_CHAR, &texts[0], lengths.data(),
                       places.data(), MPI_CHAR, comm_);
        for (std::size_t rank = 0; rank < lengths.size(); rank++) {
            if (all[rank * 4 + 2] >= 0) {
                allowances_[rank] =
                    texts.substr(static_cast<std::size_t>(places[rank]), static_cast<std::size_t>(lengths[rank]));
            }
        }
    }

    // Every rank computes the same pairs: ranks without a lease take turns over those with one.
    pairing pair_up(const std::vector<int> &all) {
        pairing found;
        std::vector<int> with, without;
        for (int rank = 0; rank < size_; rank++) {
            (all[static_cast<std::size_t>(rank) * 4] == 1 ? with : without).push_back(rank);
        }
        found.with_lease = static_cast<int>(with.size());
        if (with.empty() || !options_.private_nodes) {
            want(std::string(), false);
            return found;
        }
        found.paired = static_cast<int>(without.size());
        bool needs_node = false;
        std::string wanted;
        for (std::size_t at = 0; at < without.size(); at++) {
            const int partner = with[at % with.size()];
            const int host = all[static_cast<std::size_t>(partner) * 4 + 1];
            needs_node = needs_node || host == rank_;
            found.with_private += all[static_cast<std::size_t>(without[at]) * 4 + 3];
            if (without[at] == rank_) {
                found.partner = partner;
                wanted = allowances_[static_cast<std::size_t>(host)];
            }
        }
        want(wanted, needs_node);
        return found;
    }

    // Has the thread lease from the node of an allowance, and start a node on this host.
    void want(const std::string &allowance, bool needs_node) {
        std::lock_guard<std::mutex> lock(mutex_);
        needs_node_ = needs_node_ || needs_node;
        wanted_ = allowance;
        changed_.notify_all();
    }

    // When a request for a lease may be repeated: after a pause that grows with each refusal.
    struct backoff {
        std::chrono::milliseconds first, pause = first;
        clock::time_point next = clock::now();

        bool is_over() const { return clock::now() >= next; }
        void on_outcome(bool is_granted) {
            next = clock::now() + (is_granted ? std::chrono::milliseconds(0) : pause);
            pause = is_granted ? first : std::min(pause * 2, first * 64);
        }
    };

    // The thread: leases, and starts the private node.
    void run() {
        std::unique_lock<std::mutex> lock(mutex_);
        backoff of_lease{options_.retry}, of_private{options_.retry};
        while (!is_stopping_) {
            if (wants_lease_ && of_lease.is_over()) {
                wants_lease_ = !lease_from(lock, [this] { return client_of_manager(); }, options_.lease, true);
                of_lease.on_outcome(!wants_lease_);
            }
            progress_node(lock);
            if (!wanted_.empty() && wanted_ != in_use_ && !fresh_ && of_private.is_over()) {
                const std::string allowance = wanted_;
                const bool is_granted =
                    lease_from(lock, [&] { return dayfly::detail::client_of(allowance); }, options_.private_lease, false);
                in_use_ = is_granted ? allowance : in_use_;
                of_private.on_outcome(is_granted);
            }
            const bool is_waiting = wants_lease_ || (needs_node_ && allowance_.empty()) ||
                                    (!wanted_.empty() && wanted_ != in_use_);
            changed_.wait_for(lock, std::chrono::milliseconds(is_waiting ? 10 : 1000));
        }
    }

    // Starts the private node if it is needed, and takes its allowance when it serves.
    void progress_node(std::unique_lock<std::mutex> &lock) {
        if (node_ && node_->has_ended()) {
            node_.reset();
            allowance_.clear();
        }
        if (needs_node_ && !node_ && starts_ < max_starts) {
            starts_++;
            start_node(lock);
        }
        if (node_ && allowance_.empty()) {
            allowance_ = node_->allowance();
        }
    }

    client client_of_manager() const { return options_.manager.empty() ? client() : client(options_.manager); }

    void start_node(std::unique_lock<std::mutex> &lock) {
        std::unique_ptr<dayfly::detail::private_node> node;
        lock.unlock();
        try {
            node = std::make_unique<dayfly::detail::private_node>(host_name_);
            lock.lock();
        } catch (const error &failed) {
            lock.lock();
            refusal_ = failed.what();
        }
        node_ = std::move(node);
    }

    // Leases without the lock. Returns whether there are workers.
    template <typename Source>
    bool lease_from(std::unique_lock<std::mutex> &lock, Source source, const lease_options &terms, bool is_lease) {
        std::unique_ptr<invoker> made;
        std::string refusal;
        lock.unlock();
        try {
            made = std::make_unique<invoker>(source());
            made->allocate(options_.library, options_.bytes, terms);
        } catch (const error &refused) {
            made.reset();
            refusal = refused.what();
        }
        lock.lock();
        refusal_ = refusal;
        if (made) {
            fresh_ = std::move(made);
            fresh_is_lease_ = is_lease;
        }
        return fresh_ != nullptr;
    }

    void end_thread() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_stopping_ = true;
        }
        changed_.notify_all();
        if (thread_.joinable()) {
            thread_.join();
        }
    }

    void stop() {
        end_thread();
        current_.reset();
        fresh_.reset();
        node_.reset();
    }

    const accelerator_options options_;
    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = 0, size_ = 1;
    // Lowest rank on this host.
    int leader_ = 0;
    // Name of this host, if there are others.
    std::string host_name_;
    // Of the private node of each leader, as all ranks know them.
    std::vector<std::string> allowances_;
    std::unique_ptr<invoker> current_;
    bool has_lease_ = false;
    bool may_lease_ = false;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::unique_ptr<invoker> fresh_;
    bool fresh_is_lease_ = false;
    bool wants_lease_ = false;
    bool needs_node_ = false;
    int starts_ = 0;
    bool is_stopping_ = false;
    // Allowance of the node that this rank shall lease from, and of the one that it has leased from.
    std::string wanted_, in_use_;
    std::unique_ptr<dayfly::detail::private_node> node_;
    // Of `node_`.
    std::string allowance_;
    std::string refusal_;
    std::thread thread_;
};

} // namespace mpi
} // namespace dayfly

#endif
