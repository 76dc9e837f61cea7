/* Assertions of the tests in C. */
#ifndef CHECK_H
#define CHECK_H

#include <dayfly.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __func__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define IS(got, want)                                                                                                  \
    do {                                                                                                               \
        dfly_status is_ = (got);                                                                                         \
        if (is_ != (want))                                                                                             \
            FAIL("%s is %s, not %s: %s", #got, dfly_error_name(is_), dfly_error_name(want), dfly_last_error_message());      \
    } while (0)
#define OK(got) IS(got, DFLY_OK)
#define TRUE(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what))                                                                                                   \
            FAIL("%s does not hold; last error: %s", #what, dfly_last_error_message());                                  \
    } while (0)
#define SAYS(words) TRUE(strstr(dfly_last_error_message(), words) != NULL)

#endif
