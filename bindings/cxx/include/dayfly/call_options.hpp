// Options of a call of an invoker.
#ifndef DAYFLY_CALL_OPTIONS_HPP
#define DAYFLY_CALL_OPTIONS_HPP

#include "error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace dayfly {

struct call_options {
    std::chrono::milliseconds deadline{0}; // of the execution, after which the worker is stopped; 0 for none
    bool idempotent = false;               // running the call twice does no harm: it may be retried
    std::uint32_t worker = DFLY_ANY_WORKER; // the only worker that may run the call
    std::uint32_t incarnation = 0; // of that worker; with any other the call ends with DFLY_STATE_LOST; 0 for any
    std::size_t room = 0;          // bytes to reserve for an output without a buffer; 0: the worker chooses

    // Returns the options for the C library.
    dfly_call_options raw() const {
        dfly_call_options options;
        detail::check(dfly_call_options_init(&options));
        const auto limit = deadline.count();
        options.deadline_ms = limit < DFLY_FOR_EVER ? static_cast<std::uint32_t>(limit) : DFLY_FOR_EVER;
        options.idempotent = idempotent;
        options.worker = worker;
        options.incarnation = incarnation;
        options.room = room;
        return options;
    }
};

} // namespace dayfly

#endif
