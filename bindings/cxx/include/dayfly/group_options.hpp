// How a process joins a group without `dayfly run`. Included by group.hpp.
#ifndef DAYFLY_GROUP_OPTIONS_HPP
#define DAYFLY_GROUP_OPTIONS_HPP

#include "group_buffers.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

namespace dayfly {

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
    bool lazy_connect = false;               // connect two ranks when one first needs the other; equal on all ranks

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
        options.lazy_connect = lazy_connect;
        return options;
    }

private:
    static std::uint32_t narrow(std::int64_t value) {
        return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value, 0, DFLY_FOR_EVER));
    }
};

} // namespace dayfly

#endif
