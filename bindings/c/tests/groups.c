/* Tests of the C library's groups, in each rank: dayfly run --ranks N ./groups [mismatch|die], or
 * ./groups meet RENDEZVOUS KEY RANKS without `dayfly run`. */
#include "check.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 100000 };

static dfly_group *group;
static uint32_t rank, size;

/* Returns element i of rank r. */
static double element(uint32_t r, size_t i) { return (double)((i * 7 + r * 13) % 101); }

static double *elements(size_t count) {
    double *made = malloc(count * sizeof *made + 1);
    for (size_t i = 0; i < count; i++) {
        made[i] = element(rank, i);
    }
    return made;
}

static double total(uint32_t ranks, size_t i) {
    double sum = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        sum += element(r, i);
    }
    return sum;
}

static void reductions_combine_all_ranks(void) {
    const size_t counts[] = {0, 1, 7, 1000, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t count = counts[c];
        double *own = elements(count), *into = malloc(count * sizeof *into + 1);
        OK(dfly_group_allreduce(group, own, into, count, DFLY_F64, DFLY_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            TRUE(into[i] == total(size, i));
        }
        uint32_t root = size - 1;
        OK(dfly_group_reduce(group, own, rank == root ? into : NULL, count, DFLY_F64, DFLY_MAX, root, NULL));
        for (size_t i = 0; i < count; i++) {
            double largest = 0;
            for (uint32_t r = 0; r < size; r++) {
                largest = fmax(largest, element(r, i));
            }
            TRUE(rank != root || into[i] == largest);
            TRUE(own[i] == element(rank, i));
        }
        OK(dfly_group_scan(group, own, into, count, DFLY_F64, DFLY_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            TRUE(into[i] == total(rank + 1, i));
            into[i] = -1;
        }
        OK(dfly_group_exscan(group, own, into, count, DFLY_F64, DFLY_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            TRUE(into[i] == (rank == 0 ? -1 : total(rank, i)));
        }
        /* In place: the input is copied where it overlaps with the output. */
        OK(dfly_group_allreduce(group, own, own, count, DFLY_F64, DFLY_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            TRUE(own[i] == total(size, i));
        }
        free(own), free(into);
    }
}

static void reduce_scatter_gives_each_rank_its_part(void) {
    size_t *counts = malloc(size * sizeof *counts), all = 0, start = 0;
    for (uint32_t r = 0; r < size; r++) {
        counts[r] = 3 * r + 1;
        start += r < rank ? counts[r] : 0;
        all += counts[r];
    }
    double *own = elements(all), *into = malloc(counts[rank] * sizeof *into);
    OK(dfly_group_reduce_scatter(group, own, into, counts, DFLY_F64, DFLY_SUM, NULL));
    for (size_t i = 0; i < counts[rank]; i++) {
        TRUE(into[i] == total(size, start + i));
    }
    free(counts), free(own), free(into);
}

static void every_datatype_has_its_size_and_sum(void) {
    int8_t i8 = 1;
    int16_t i16 = -2;
    int32_t i32 = 3;
    int64_t i64 = -4;
    uint8_t u8 = 5;
    uint16_t u16 = 6;
    uint32_t u32 = 7;
    uint64_t u64 = 8;
    float f32[2] = {0.5f, 2};
    double f64[2] = {0.25, -3};
    bool any = rank == 0;
    int n = (int)size;
    const struct {
        uint32_t number;
        size_t bytes;
    } sizes[] = {{DFLY_BYTES, 1}, {DFLY_I8, 1},  {DFLY_I16, 2}, {DFLY_I32, 4}, {DFLY_I64, 8},       {DFLY_U8, 1},
                 {DFLY_U16, 2},   {DFLY_U32, 4}, {DFLY_U64, 8}, {DFLY_F32, 4}, {DFLY_F64, 8},       {DFLY_BOOL, 1},
                 {DFLY_COMPLEX64, 8}, {DFLY_COMPLEX128, 16}, {DFLY_F64_AT, 16}, {DFLY_I64_AT, 16},
                 {DFLY_F64_AT32, 16}, {DFLY_I64_AT32, 16}, {DFLY_F32_AT32, 8}, {DFLY_I32_AT32, 8}, {DFLY_I16_AT32, 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        TRUE(dfly_datatype_bytes(sizes[i].number) == sizes[i].bytes);
    }
    TRUE(dfly_datatype_bytes(21) == 0);
#define SUMS(variable, number, want)                                                                                   \
    OK(dfly_group_allreduce(group, &variable, &variable, 1, number, DFLY_SUM, NULL));                                      \
    TRUE(variable == (want))
    SUMS(i8, DFLY_I8, n);
    SUMS(i16, DFLY_I16, -2 * n);
    SUMS(i32, DFLY_I32, 3 * n);
    SUMS(i64, DFLY_I64, -4 * n);
    SUMS(u8, DFLY_U8, 5 * n);
    SUMS(u16, DFLY_U16, 6 * n);
    SUMS(u32, DFLY_U32, 7 * size);
    SUMS(u64, DFLY_U64, 8 * size);
    SUMS(f32[0], DFLY_F32, 0.5f * (float)n);
    SUMS(f64[0], DFLY_F64, 0.25 * n);
    OK(dfly_group_allreduce(group, &any, &any, 1, DFLY_BOOL, DFLY_LOGICAL_OR, NULL));
    TRUE(any);
    f32[0] = 1, f64[0] = 1;
    OK(dfly_group_allreduce(group, f32, f32, 1, DFLY_COMPLEX64, DFLY_SUM, NULL));
    OK(dfly_group_allreduce(group, f64, f64, 1, DFLY_COMPLEX128, DFLY_SUM, NULL));
    TRUE(f32[0] == (float)n && f32[1] == 2 * (float)n && f64[0] == n && f64[1] == -3 * n);
}

static void max_at_returns_value_and_index(void) {
    struct {
        double value;
        int64_t place;
    } at = {fabs((double)rank - 1), rank};
    uint32_t far = size > 3 ? size - 1 : 0; /* index of the largest |r - 1|, the lowest of several */
    OK(dfly_group_allreduce(group, &at, &at, 1, DFLY_F64_AT, DFLY_MAX_AT, NULL));
    TRUE(at.place == far && at.value == fabs((double)far - 1));
}

static int32_t used;

/* 2 x 2 matrices: their product is not commutative. */
static void multiply(void *user, const void *left, void *right, size_t count, uint32_t datatype) {
    const double *a = left;
    double *b = right;
    TRUE(user == &used && datatype == DFLY_F64 && (uintptr_t)left % 8 == 0 && (uintptr_t)right % 8 == 0);
    for (size_t i = 0; i + 4 <= count; i += 4, a += 4, b += 4) {
        double product[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
                             a[2] * b[1] + a[3] * b[3]};
        memcpy(b, product, sizeof product);
    }
    used++;
}

static void longest(void *user, const void *left, void *right, size_t count, uint32_t datatype) {
    const int32_t *a = left;
    int32_t *b = right;
    TRUE(user == NULL && datatype == DFLY_I32);
    for (size_t i = 0; i < count; i++) {
        b[i] = abs(a[i]) > abs(b[i]) ? a[i] : b[i];
    }
}

static void user_operations_are_called(void) {
    uint32_t product, farthest;
    int32_t called;
    OK(dfly_operation_create(multiply, &used, false, &product));
    OK(dfly_operation_create(longest, NULL, true, &farthest));
    double own[4] = {1, rank + 1.0, 0, 2}, into[4], want[4] = {1, 0, 0, 1};
    for (uint32_t r = 0; r < size; r++) {
        double with[4] = {1, r + 1.0, 0, 2}, next[4];
        next[0] = want[0] * with[0] + want[1] * with[2], next[1] = want[0] * with[1] + want[1] * with[3];
        next[2] = want[2] * with[0] + want[3] * with[2], next[3] = want[2] * with[1] + want[3] * with[3];
        memcpy(want, next, sizeof next);
    }
    OK(dfly_group_allreduce(group, own, into, 4, DFLY_F64, product, NULL));
    TRUE(memcmp(into, want, sizeof want) == 0);
    OK(dfly_group_allreduce(group, &used, &called, 1, DFLY_I32, DFLY_SUM, NULL));
    TRUE(size == 1 || called > 0);
    /* An unaligned buffer is copied to aligned memory for the operation. */
    char askew[5 * sizeof(double)];
    memcpy(askew + 1, own, sizeof own);
    OK(dfly_group_allreduce(group, askew + 1, askew + 1, 4, DFLY_F64, product, NULL));
    TRUE(memcmp(askew + 1, want, sizeof want) == 0);
    int32_t here = rank % 2 ? -(int32_t)rank : (int32_t)rank, last = (int32_t)size - 1;
    OK(dfly_group_allreduce(group, &here, &here, 1, DFLY_I32, farthest, NULL));
    TRUE(here == (last % 2 ? -last : last));
    /* An operation in progress still uses the function after this. */
    dfly_request *request;
    memcpy(into, own, sizeof own);
    OK(dfly_group_allreduce(group, own, into, 4, DFLY_F64, product, &request));
    OK(dfly_operation_free(product));
    OK(dfly_request_wait(request, NULL));
    TRUE(memcmp(into, want, sizeof want) == 0);
    dfly_request_free(request);
    IS(dfly_operation_free(product), DFLY_INVALID_REQUEST);
    IS(dfly_group_allreduce(group, own, into, 4, DFLY_F64, product, NULL), DFLY_INVALID_REQUEST);
    SAYS("dfly_operation_create");
    OK(dfly_operation_free(farthest));
}

static void equal_blocks_are_placed(void) {
    enum { EACH = 5 };
    double *all = malloc(size * EACH * sizeof *all), own[EACH];
    for (uint32_t root = 0; root < size; root++) {
        for (int i = 0; i < EACH; i++) {
            own[i] = element(rank, i);
        }
        OK(dfly_group_gather(group, own, EACH, DFLY_F64, rank == root ? all : NULL, root, NULL));
        for (uint32_t at = 0; rank == root && at < size * EACH; at++) {
            TRUE(all[at] == element(at / EACH, at % EACH));
        }
        OK(dfly_group_scatter(group, rank == root ? all : NULL, own, EACH, DFLY_F64, root, NULL));
        for (int i = 0; i < EACH; i++) {
            TRUE(own[i] == element(rank, i));
        }
        double seen[EACH] = {0};
        if (rank == root) {
            memcpy(seen, own, sizeof own);
        }
        OK(dfly_group_bcast(group, seen, EACH, DFLY_F64, root, NULL));
        for (int i = 0; i < EACH; i++) {
            TRUE(seen[i] == element(root, i));
        }
    }
    /* A rank's input may be in its place in the output already. */
    memset(all, 0, size * EACH * sizeof *all);
    memcpy(all + rank * EACH, own, sizeof own);
    OK(dfly_group_allgather(group, all + rank * EACH, EACH, DFLY_F64, all, NULL));
    for (uint32_t at = 0; at < size * EACH; at++) {
        TRUE(all[at] == element(at / EACH, at % EACH));
    }
    for (uint32_t at = 0; at < size * EACH; at++) {
        all[at] = rank * 1000.0 + at;
    }
    OK(dfly_group_alltoall(group, all, all, EACH, DFLY_F64, NULL));
    for (uint32_t at = 0; at < size * EACH; at++) {
        TRUE(all[at] == at / EACH * 1000.0 + rank * EACH + at % EACH);
    }
    free(all);
}

static void unequal_blocks_are_placed(void) {
    size_t *counts = malloc(size * sizeof *counts), *places = malloc(size * sizeof *places), whole = 0;
    for (uint32_t r = 0; r < size; r++) {
        counts[r] = r + 1;
        whole += counts[r];
        places[r] = 2 * r * size; /* with gaps */
    }
    size_t room = 2 * (size_t)size * size + 1;
    double *own = elements(rank + 1), *all = calloc(room, sizeof *all);
    OK(dfly_group_gatherv(group, own, rank + 1, DFLY_F64, all, counts, places, 0, NULL));
    for (uint32_t r = 0; rank == 0 && r < size; r++) {
        for (size_t i = 0; i < counts[r]; i++) {
            TRUE(all[places[r] + i] == element(r, i));
        }
    }
    memset(own, 0, (rank + 1) * sizeof *own);
    OK(dfly_group_scatterv(group, all, counts, places, own, rank + 1, DFLY_F64, 0, NULL));
    OK(dfly_group_allgatherv(group, own, rank + 1, DFLY_F64, all, counts, NULL, NULL));
    for (size_t r = 0, at = 0; r < size; r++) {
        for (size_t i = 0; i < counts[r]; i++, at++) {
            TRUE(all[at] == element((uint32_t)r, i));
        }
    }
    /* Rank r sends its first s + 1 elements to s, so that a rank receives equally many from each. */
    double *sent = malloc(whole * sizeof *sent), *came = malloc(size * (rank + 1) * sizeof *came);
    size_t *equal = malloc(size * sizeof *equal);
    for (size_t s = 0, at = 0; s < size; s++) {
        equal[s] = rank + 1;
        for (size_t i = 0; i < counts[s]; i++, at++) {
            sent[at] = element(rank, i);
        }
    }
    OK(dfly_group_alltoallv(group, sent, counts, NULL, came, equal, NULL, DFLY_F64, NULL));
    for (size_t at = 0; at < size * (rank + 1); at++) {
        TRUE(came[at] == element((uint32_t)(at / (rank + 1)), at % (rank + 1)));
    }
    free(counts), free(places), free(own), free(all), free(sent), free(came), free(equal);
}

static void messages_arrive_in_order_by_source_and_tag(void) {
    uint32_t next = (rank + 1) % size, last = (rank + size - 1) % size;
    dfly_message message;
    int32_t out[3] = {(int32_t)rank, 2, 3}, in[4] = {0};
    OK(dfly_group_sendrecv(group, out, 3, next, 5, in, 4, last, 5, DFLY_I32, &message));
    TRUE(message.source == last && message.tag == 5 && message.length == 12 && in[0] == (int32_t)last && in[2] == 3);
    /* Input and output overlap. */
    OK(dfly_group_sendrecv(group, out, 3, next, 6, out, 3, last, DFLY_ANY_TAG, DFLY_I32, &message));
    TRUE(message.tag == 6 && out[0] == (int32_t)last);
    /* A message to DFLY_NO_RANK is discarded. */
    OK(dfly_group_send(group, out, 3, DFLY_I32, DFLY_NO_RANK, 0));
    OK(dfly_group_recv(group, in, 4, DFLY_I32, DFLY_NO_RANK, 0, &message));
    TRUE(message.source == DFLY_NO_RANK && message.length == 0 && in[0] == (int32_t)last);
    OK(dfly_group_sendrecv(group, out, 3, rank + 1 < size ? rank + 1 : DFLY_NO_RANK, 7, in, 4, rank ? rank - 1 : DFLY_NO_RANK, 7,
                         DFLY_I32, &message));
    TRUE(message.source == (rank ? rank - 1 : DFLY_NO_RANK));
    if (rank == 0) {
        for (uint32_t r = 1; r < size; r++) {
            OK(dfly_group_probe(group, DFLY_ANY_RANK, 9, &message));
            TRUE(message.length == sizeof(double) * message.source && message.tag == 9);
            size_t count = message.length / sizeof(double);
            double *into = malloc(message.length);
            OK(dfly_group_recv(group, into, count, DFLY_F64, message.source, 9, NULL));
            for (size_t i = 0; i < count; i++) {
                TRUE(into[i] == element(message.source, i));
            }
            free(into);
        }
    } else {
        double *own = elements(rank);
        OK(dfly_group_send(group, own, rank, DFLY_F64, 0, 9));
        free(own);
    }
    bool came = true;
    OK(dfly_group_iprobe(group, DFLY_ANY_RANK, 77, &message, &came));
    TRUE(!came);
    /* A message to this rank itself arrives at once. */
    OK(dfly_group_send(group, out, 3, DFLY_I32, rank, 77));
    OK(dfly_group_iprobe(group, rank, 77, &message, &came));
    TRUE(came && message.length == 12);
    IS(dfly_group_recv(group, in, 1, DFLY_I32, rank, 77, &message), DFLY_TRUNCATED);
    OK(dfly_group_barrier(group, NULL));
}

static void background_operations_complete(void) {
    uint32_t next = (rank + 1) % size, last = (rank + size - 1) % size;
    double *out = elements(MOST), *in = calloc(MOST, sizeof *in), sum = rank, all = 0;
    dfly_request *requests[4];
    dfly_message message;
    OK(dfly_group_irecv(group, in, MOST, DFLY_F64, last, 1, &requests[0]));
    OK(dfly_group_isend(group, out, MOST, DFLY_F64, next, 1, &requests[1]));
    OK(dfly_group_allreduce(group, &sum, &all, 1, DFLY_F64, DFLY_SUM, &requests[2]));
    OK(dfly_group_barrier(group, &requests[3]));
    OK(dfly_request_wait_all(requests, 4));
    OK(dfly_request_wait(requests[0], &message)); /* returns the same envelope again */
    TRUE(message.source == last && message.length == MOST * sizeof *in);
    TRUE(all == size * (size - 1) / 2.0);
    for (size_t i = 0; i < MOST; i++) {
        TRUE(in[i] == element(last, i));
    }
    for (int i = 0; i < 4; i++) {
        dfly_request_free(requests[i]);
    }
    /* A receive without a message has not completed, and can be cancelled. */
    bool over = true;
    OK(dfly_group_irecv(group, in, MOST, DFLY_F64, last, 1234, &requests[0]));
    OK(dfly_request_test(requests[0], &message, &over));
    TRUE(!over);
    dfly_request_free(requests[0]);
    OK(dfly_group_isend(group, out, 1, DFLY_F64, DFLY_NO_RANK, 0, &requests[0]));
    OK(dfly_request_test(requests[0], &message, &over));
    TRUE(over);
    dfly_request_free(requests[0]);
    /* Every collective, in the background and in the foreground. */
    double *one = malloc(size * sizeof *one), *two = malloc(size * sizeof *two);
    size_t *ones = malloc(size * sizeof *ones);
    for (uint32_t r = 0; r < size; r++) {
        ones[r] = 1;
    }
#define BOTH(NAME, ...)                                                                                                \
    do {                                                                                                               \
        double *into = one;                                                                                            \
        memset(one, 0, size * sizeof *one), memset(two, 0, size * sizeof *two);                                        \
        OK(NAME(__VA_ARGS__, NULL));                                                                                   \
        into = two;                                                                                                    \
        OK(NAME(__VA_ARGS__, &requests[0]));                                                                           \
        OK(dfly_request_wait(requests[0], NULL));                                                                        \
        dfly_request_free(requests[0]);                                                                                  \
        TRUE(memcmp(one, two, size * sizeof *one) == 0);                                                               \
    } while (0)
    BOTH(dfly_group_gather, group, out, 1, DFLY_F64, into, 0);
    BOTH(dfly_group_gatherv, group, out, 1, DFLY_F64, into, ones, NULL, 0);
    BOTH(dfly_group_scatter, group, out, into, 1, DFLY_F64, 0);
    BOTH(dfly_group_scatterv, group, out, ones, NULL, into, 1, DFLY_F64, 0);
    BOTH(dfly_group_allgather, group, out, 1, DFLY_F64, into);
    BOTH(dfly_group_allgatherv, group, out, 1, DFLY_F64, into, ones, NULL);
    BOTH(dfly_group_alltoall, group, out, into, 1, DFLY_F64);
    BOTH(dfly_group_alltoallv, group, out, ones, NULL, into, ones, NULL, DFLY_F64);
    BOTH(dfly_group_reduce, group, out, into, 1, DFLY_F64, DFLY_SUM, 0);
    BOTH(dfly_group_allreduce, group, out, into, 1, DFLY_F64, DFLY_PRODUCT);
    BOTH(dfly_group_reduce_scatter, group, out, into, ones, DFLY_F64, DFLY_MIN);
    BOTH(dfly_group_scan, group, out, into, 1, DFLY_F64, DFLY_SUM);
    BOTH(dfly_group_exscan, group, out, into, 1, DFLY_F64, DFLY_SUM);
    BOTH(dfly_group_bcast, group, (*into = rank, into), 1, DFLY_F64, size - 1);
    TRUE(*two == size - 1);
    free(out), free(in), free(one), free(two), free(ones);
}

static void parts_of_a_group_are_groups(void) {
    dfly_group *part, *copy, *none;
    OK(dfly_group_split(group, rank % 2, -(int64_t)rank, &part)); /* highest rank first */
    uint32_t of = (size + 1 - rank % 2) / 2, member;
    TRUE(dfly_group_size(part) == of && dfly_group_rank(part) == of - 1 - rank / 2);
    OK(dfly_group_member(part, dfly_group_rank(part), &member));
    TRUE(member == rank);
    IS(dfly_group_member(part, of, &member), DFLY_INVALID_REQUEST);
    uint32_t sum = rank, want = 0;
    for (uint32_t r = rank % 2; r < size; r += 2) {
        want += r;
    }
    OK(dfly_group_allreduce(part, &sum, &sum, 1, DFLY_U32, DFLY_SUM, NULL));
    TRUE(sum == want);
    OK(dfly_group_split(group, rank == 0 ? DFLY_NO_COLOR : 1, 0, &none));
    TRUE((none == NULL) == (rank == 0));
    OK(dfly_group_dup(group, &copy));
    /* The messages of the two groups are separate. */
    bool came;
    OK(dfly_group_send(copy, &sum, 1, DFLY_U32, rank, 3));
    OK(dfly_group_iprobe(group, rank, 3, NULL, &came));
    TRUE(!came);
    OK(dfly_group_iprobe(copy, rank, 3, NULL, &came));
    TRUE(came);
    dfly_group_free(part), dfly_group_free(none), dfly_group_free(copy);
}

static void misuse_is_an_error(void) {
    double out[2] = {1, 2}, in[2];
    size_t huge[1] = {SIZE_MAX};
    dfly_request *request = (dfly_request *)&request;
    IS(dfly_group_send(group, out, 2, 99, 0, 0), DFLY_INVALID_REQUEST);
    SAYS("no datatype 99");
    IS(dfly_group_send(group, out, SIZE_MAX / 2, DFLY_F64, 0, 0), DFLY_INVALID_REQUEST);
    IS(dfly_group_send(group, NULL, 2, DFLY_F64, 0, 0), DFLY_INVALID_REQUEST);
    SAYS("the message, which has a length, is NULL");
    IS(dfly_group_send(group, out, 2, DFLY_F64, size, 0), DFLY_INVALID_REQUEST);
    SAYS("there is no rank");
    IS(dfly_group_send(group, out, 2, DFLY_F64, 0, DFLY_ANY_TAG), DFLY_INVALID_REQUEST);
    IS(dfly_group_isend(group, out, 2, DFLY_F64, size, 0, &request), DFLY_INVALID_REQUEST);
    TRUE(request == NULL);
    IS(dfly_group_isend(group, out, 2, DFLY_F64, 0, 0, NULL), DFLY_INVALID_REQUEST);
    IS(dfly_group_allreduce(group, out, in, 2, DFLY_F64, 0, NULL), DFLY_INVALID_REQUEST);
    SAYS("no operation 0");
    IS(dfly_group_allreduce(group, out, in, 2, DFLY_F64, DFLY_BIT_OR, NULL), DFLY_INVALID_REQUEST);
    SAYS("bitwise or of f64");
    IS(dfly_group_bcast(group, in, 2, DFLY_F64, size, NULL), DFLY_INVALID_REQUEST);
    IS(dfly_group_allgatherv(group, out, 1, DFLY_F64, in, NULL, NULL, NULL), DFLY_INVALID_REQUEST);
    SAYS("counts are NULL");
    if (size == 1) {
        IS(dfly_group_allgatherv(group, out, 1, DFLY_F64, in, huge, NULL, NULL), DFLY_INVALID_REQUEST);
    }
    IS(dfly_operation_create(NULL, NULL, true, &rank), DFLY_INVALID_REQUEST);
    OK(dfly_group_barrier(group, NULL));
}

/* Without `dayfly run`: the ranks meet with a name and a secret. */
static void meet(char **where) {
    dfly_group_options options = {0};
    dfly_message message;
    IS(dfly_group_join(&options, &group), DFLY_INVALID_REQUEST);
    SAYS("dfly_group_options_init");
    OK(dfly_group_options_init(&options));
    IS(dfly_group_join(&options, &group), DFLY_INVALID_REQUEST);
    SAYS("the rendezvous is NULL");
    options.rendezvous = where[0], options.name = "shells", options.run = "1";
    options.secret = "not hexadecimal";
    options.ranks = (uint32_t)atoi(where[2]);
    options.key = "beef";
    IS(dfly_group_join(&options, &group), DFLY_INVALID_REQUEST);
    SAYS("the rendezvous' key");
    options.key = where[1];
    IS(dfly_group_join(&options, &group), DFLY_INVALID_REQUEST);
    SAYS("hexadecimal");
    TRUE(group == NULL);
    options.secret = "00112233445566778899aabbccddeeff";
    options.spin_us = 500;
    options.deadline_s = 2;
    OK(dfly_group_join(&options, &group));
    /* No rank sends this message: the receive ends at the deadline. */
    IS(dfly_group_recv(group, NULL, 0, DFLY_BYTES, DFLY_ANY_RANK, 55, &message), DFLY_TIMED_OUT);
    dfly_request *request;
    OK(dfly_group_irecv(group, NULL, 0, DFLY_BYTES, DFLY_ANY_RANK, 55, &request));
    IS(dfly_request_wait(request, &message), DFLY_TIMED_OUT);
    IS(dfly_request_wait(request, &message), DFLY_INVALID_REQUEST);
    dfly_request_free(request);
    /* A forked child is not a member of its parent's group. */
    pid_t child = fork();
    if (child == 0) {
        bool refused = dfly_group_barrier(group, NULL) == DFLY_FORKED;
        dfly_group_free(group);
        _exit(refused ? 0 : 1);
    }
    int status;
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    dfly_group_free(group);
    options.run = "2", options.deadline_s = 60;
    OK(dfly_group_join(&options, &group));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "meet") == 0) {
        TRUE(argc == 5);
        meet(argv + 2);
    } else {
        OK(dfly_group_join(NULL, &group));
    }
    rank = dfly_group_rank(group), size = dfly_group_size(group);
    if (strcmp(what, "mismatch") == 0) {
        int32_t one = 1, all[64];
        dfly_status status = rank == 0 ? dfly_group_allreduce(group, &one, all, 1, DFLY_I32, DFLY_SUM, NULL)
                                     : dfly_group_allgather(group, &one, 1, DFLY_I32, all, NULL);
        IS(status, DFLY_MISMATCH);
        SAYS("rank 0 called allreduce of 4 bytes with sum of i32");
        SAYS("called allgather of 4 bytes");
    } else if (strcmp(what, "die") == 0) {
        dfly_group *rest;
        uint32_t victim = size - 1, sum;
        /* This rank dies while all others wait for it. */
        for (uint32_t r = 0; rank == victim && r < victim; r++) {
            OK(dfly_group_recv(group, NULL, 0, DFLY_BYTES, r, 1, NULL));
        }
        if (rank == victim) {
            raise(SIGKILL);
        }
        OK(dfly_group_send(group, NULL, 0, DFLY_BYTES, victim, 1));
        char name[32];
        snprintf(name, sizeof name, "rank %u", victim);
        IS(dfly_group_recv(group, &sum, 1, DFLY_U32, victim, 0, NULL), DFLY_RANK_LOST);
        SAYS(name);
        IS(dfly_group_barrier(group, NULL), DFLY_RANK_LOST);
        SAYS(name);
        OK(dfly_group_shrink(group, &rest));
        TRUE(dfly_group_size(rest) == size - 1);
        sum = dfly_group_rank(rest);
        OK(dfly_group_allreduce(rest, &sum, &sum, 1, DFLY_U32, DFLY_SUM, NULL));
        TRUE(sum == (size - 1) * (size - 2) / 2);
        dfly_group_free(rest);
    } else {
        reductions_combine_all_ranks();
        reduce_scatter_gives_each_rank_its_part();
        every_datatype_has_its_size_and_sum();
        max_at_returns_value_and_index();
        user_operations_are_called();
        equal_blocks_are_placed();
        unequal_blocks_are_placed();
        messages_arrive_in_order_by_source_and_tag();
        background_operations_complete();
        parts_of_a_group_are_groups();
        misuse_is_an_error();
    }
    dfly_group_free(group);
    printf("all held on %u of %u\n", rank, size);
    return 0;
}
