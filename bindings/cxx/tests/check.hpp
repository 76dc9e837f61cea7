// Assertions of the tests in C++.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <cstdio>
#include <cstdlib>
#include <dayfly/dayfly.hpp>

#define HOLDS(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #what);                                      \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

template <typename Body> static dfly_status thrown_by(Body body) {
    try {
        body();
    } catch (const dayfly::error &error) {
        HOLDS(*error.what() != 0 && *error.name() != 0 && *error.remedy() != 0);
        return error.code();
    }
    return DFLY_OK;
}

#endif
