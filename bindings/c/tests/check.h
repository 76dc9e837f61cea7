/* How the tests in C say what does not hold. */
#ifndef CHECK_H
#define CHECK_H

#include <mayfly.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __func__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define IS(got, want)                                                                                                  \
    do {                                                                                                               \
        mf_status is_ = (got);                                                                                         \
        if (is_ != (want))                                                                                             \
            FAIL("%s is %s, not %s: %s", #got, mf_error_name(is_), mf_error_name(want), mf_last_error_message());      \
    } while (0)
#define OK(got) IS(got, MF_OK)
#define TRUE(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what))                                                                                                   \
            FAIL("%s does not hold; last error: %s", #what, mf_last_error_message());                                  \
    } while (0)
#define SAYS(words) TRUE(strstr(mf_last_error_message(), words) != NULL)

#endif
