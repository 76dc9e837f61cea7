/* What the C library promises of groups, held by each rank of one: mayfly run --ranks N ./groups [mismatch|die], or
 * ./groups meet RENDEZVOUS KEY RANKS without it. */
#include "check.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 100000 };

static mf_group *group;
static uint32_t rank, size;

/* What rank r has as element i. */
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

static void reductions_combine_what_all_ranks_have(void) {
    const size_t counts[] = {0, 1, 7, 1000, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t count = counts[c];
        double *own = elements(count), *into = malloc(count * sizeof *into + 1);
        OK(mf_group_allreduce(group, own, into, count, MF_F64, MF_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            TRUE(into[i] == total(size, i));
        }
        uint32_t root = size - 1;
        OK(mf_group_reduce(group, own, rank == root ? into : NULL, count, MF_F64, MF_MAX, root, NULL));
        for (size_t i = 0; i < count; i++) {
            double largest = 0;
            for (uint32_t r = 0; r < size; r++) {
                largest = fmax(largest, element(r, i));
            }
            TRUE(rank != root || into[i] == largest);
            TRUE(own[i] == element(rank, i));
        }
        OK(mf_group_scan(group, own, into, count, MF_F64, MF_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            TRUE(into[i] == total(rank + 1, i));
            into[i] = -1;
        }
        OK(mf_group_exscan(group, own, into, count, MF_F64, MF_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            TRUE(into[i] == (rank == 0 ? -1 : total(rank, i)));
        }
        /* In place: what is read is copied where it lies under what is written. */
        OK(mf_group_allreduce(group, own, own, count, MF_F64, MF_SUM, NULL));
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
    OK(mf_group_reduce_scatter(group, own, into, counts, MF_F64, MF_SUM, NULL));
    for (size_t i = 0; i < counts[rank]; i++) {
        TRUE(into[i] == total(size, start + i));
    }
    free(counts), free(own), free(into);
}

static void every_datatype_has_its_size_and_adds_up(void) {
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
    } sizes[] = {{MF_BYTES, 1}, {MF_I8, 1},  {MF_I16, 2}, {MF_I32, 4}, {MF_I64, 8},       {MF_U8, 1},
                 {MF_U16, 2},   {MF_U32, 4}, {MF_U64, 8}, {MF_F32, 4}, {MF_F64, 8},       {MF_BOOL, 1},
                 {MF_COMPLEX64, 8}, {MF_COMPLEX128, 16}, {MF_F64_AT, 16}, {MF_I64_AT, 16},
                 {MF_F64_AT32, 16}, {MF_I64_AT32, 16}, {MF_F32_AT32, 8}, {MF_I32_AT32, 8}, {MF_I16_AT32, 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        TRUE(mf_datatype_bytes(sizes[i].number) == sizes[i].bytes);
    }
    TRUE(mf_datatype_bytes(21) == 0);
#define SUMS(variable, number, want)                                                                                   \
    OK(mf_group_allreduce(group, &variable, &variable, 1, number, MF_SUM, NULL));                                      \
    TRUE(variable == (want))
    SUMS(i8, MF_I8, n);
    SUMS(i16, MF_I16, -2 * n);
    SUMS(i32, MF_I32, 3 * n);
    SUMS(i64, MF_I64, -4 * n);
    SUMS(u8, MF_U8, 5 * n);
    SUMS(u16, MF_U16, 6 * n);
    SUMS(u32, MF_U32, 7 * size);
    SUMS(u64, MF_U64, 8 * size);
    SUMS(f32[0], MF_F32, 0.5f * (float)n);
    SUMS(f64[0], MF_F64, 0.25 * n);
    OK(mf_group_allreduce(group, &any, &any, 1, MF_BOOL, MF_LOGICAL_OR, NULL));
    TRUE(any);
    f32[0] = 1, f64[0] = 1;
    OK(mf_group_allreduce(group, f32, f32, 1, MF_COMPLEX64, MF_SUM, NULL));
    OK(mf_group_allreduce(group, f64, f64, 1, MF_COMPLEX128, MF_SUM, NULL));
    TRUE(f32[0] == (float)n && f32[1] == 2 * (float)n && f64[0] == n && f64[1] == -3 * n);
}

static void the_largest_value_is_told_with_its_place(void) {
    struct {
        double value;
        int64_t place;
    } at = {fabs((double)rank - 1), rank};
    uint32_t far = size > 3 ? size - 1 : 0; /* of |r - 1| the largest, the lowest of several */
    OK(mf_group_allreduce(group, &at, &at, 1, MF_F64_AT, MF_MAX_AT, NULL));
    TRUE(at.place == far && at.value == fabs((double)far - 1));
}

static int32_t used;

/* 2 x 2 matrices: an order that matters. */
static void multiply(void *user, const void *left, void *right, size_t count, uint32_t datatype) {
    const double *a = left;
    double *b = right;
    TRUE(user == &used && datatype == MF_F64 && (uintptr_t)left % 8 == 0 && (uintptr_t)right % 8 == 0);
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
    TRUE(user == NULL && datatype == MF_I32);
    for (size_t i = 0; i < count; i++) {
        b[i] = abs(a[i]) > abs(b[i]) ? a[i] : b[i];
    }
}

static void operations_of_the_programs_own_are_called(void) {
    uint32_t product, farthest;
    int32_t called;
    OK(mf_operation_create(multiply, &used, false, &product));
    OK(mf_operation_create(longest, NULL, true, &farthest));
    double own[4] = {1, rank + 1.0, 0, 2}, into[4], want[4] = {1, 0, 0, 1};
    for (uint32_t r = 0; r < size; r++) {
        double with[4] = {1, r + 1.0, 0, 2}, next[4];
        next[0] = want[0] * with[0] + want[1] * with[2], next[1] = want[0] * with[1] + want[1] * with[3];
        next[2] = want[2] * with[0] + want[3] * with[2], next[3] = want[2] * with[1] + want[3] * with[3];
        memcpy(want, next, sizeof next);
    }
    OK(mf_group_allreduce(group, own, into, 4, MF_F64, product, NULL));
    TRUE(memcmp(into, want, sizeof want) == 0);
    OK(mf_group_allreduce(group, &used, &called, 1, MF_I32, MF_SUM, NULL));
    TRUE(size == 1 || called > 0);
    /* One that lies askew is shown where a double may lie. */
    char askew[5 * sizeof(double)];
    memcpy(askew + 1, own, sizeof own);
    OK(mf_group_allreduce(group, askew + 1, askew + 1, 4, MF_F64, product, NULL));
    TRUE(memcmp(askew + 1, want, sizeof want) == 0);
    int32_t here = rank % 2 ? -(int32_t)rank : (int32_t)rank, last = (int32_t)size - 1;
    OK(mf_group_allreduce(group, &here, &here, 1, MF_I32, farthest, NULL));
    TRUE(here == (last % 2 ? -last : last));
    /* Freed while it is under way, it is still used. */
    mf_request *request;
    memcpy(into, own, sizeof own);
    OK(mf_group_allreduce(group, own, into, 4, MF_F64, product, &request));
    OK(mf_operation_free(product));
    OK(mf_request_wait(request, NULL));
    TRUE(memcmp(into, want, sizeof want) == 0);
    mf_request_free(request);
    IS(mf_operation_free(product), MF_INVALID_REQUEST);
    IS(mf_group_allreduce(group, own, into, 4, MF_F64, product, NULL), MF_INVALID_REQUEST);
    SAYS("mf_operation_create");
    OK(mf_operation_free(farthest));
}

static void blocks_of_one_length_go_where_they_belong(void) {
    enum { EACH = 5 };
    double *all = malloc(size * EACH * sizeof *all), own[EACH];
    for (uint32_t root = 0; root < size; root++) {
        for (int i = 0; i < EACH; i++) {
            own[i] = element(rank, i);
        }
        OK(mf_group_gather(group, own, EACH, MF_F64, rank == root ? all : NULL, root, NULL));
        for (uint32_t at = 0; rank == root && at < size * EACH; at++) {
            TRUE(all[at] == element(at / EACH, at % EACH));
        }
        OK(mf_group_scatter(group, rank == root ? all : NULL, own, EACH, MF_F64, root, NULL));
        for (int i = 0; i < EACH; i++) {
            TRUE(own[i] == element(rank, i));
        }
        double seen[EACH] = {0};
        if (rank == root) {
            memcpy(seen, own, sizeof own);
        }
        OK(mf_group_bcast(group, seen, EACH, MF_F64, root, NULL));
        for (int i = 0; i < EACH; i++) {
            TRUE(seen[i] == element(root, i));
        }
    }
    /* What a rank gives may lie in its place already. */
    memset(all, 0, size * EACH * sizeof *all);
    memcpy(all + rank * EACH, own, sizeof own);
    OK(mf_group_allgather(group, all + rank * EACH, EACH, MF_F64, all, NULL));
    for (uint32_t at = 0; at < size * EACH; at++) {
        TRUE(all[at] == element(at / EACH, at % EACH));
    }
    for (uint32_t at = 0; at < size * EACH; at++) {
        all[at] = rank * 1000.0 + at;
    }
    OK(mf_group_alltoall(group, all, all, EACH, MF_F64, NULL));
    for (uint32_t at = 0; at < size * EACH; at++) {
        TRUE(all[at] == at / EACH * 1000.0 + rank * EACH + at % EACH);
    }
    free(all);
}

static void blocks_of_any_length_go_where_they_belong(void) {
    size_t *counts = malloc(size * sizeof *counts), *places = malloc(size * sizeof *places), whole = 0;
    for (uint32_t r = 0; r < size; r++) {
        counts[r] = r + 1;
        whole += counts[r];
        places[r] = 2 * r * size; /* with gaps */
    }
    size_t room = 2 * (size_t)size * size + 1;
    double *own = elements(rank + 1), *all = calloc(room, sizeof *all);
    OK(mf_group_gatherv(group, own, rank + 1, MF_F64, all, counts, places, 0, NULL));
    for (uint32_t r = 0; rank == 0 && r < size; r++) {
        for (size_t i = 0; i < counts[r]; i++) {
            TRUE(all[places[r] + i] == element(r, i));
        }
    }
    memset(own, 0, (rank + 1) * sizeof *own);
    OK(mf_group_scatterv(group, all, counts, places, own, rank + 1, MF_F64, 0, NULL));
    OK(mf_group_allgatherv(group, own, rank + 1, MF_F64, all, counts, NULL, NULL));
    for (size_t r = 0, at = 0; r < size; r++) {
        for (size_t i = 0; i < counts[r]; i++, at++) {
            TRUE(all[at] == element((uint32_t)r, i));
        }
    }
    /* Rank r sends s its first s + 1 elements, so that everybody receives as many from each. */
    double *sent = malloc(whole * sizeof *sent), *came = malloc(size * (rank + 1) * sizeof *came);
    size_t *equal = malloc(size * sizeof *equal);
    for (size_t s = 0, at = 0; s < size; s++) {
        equal[s] = rank + 1;
        for (size_t i = 0; i < counts[s]; i++, at++) {
            sent[at] = element(rank, i);
        }
    }
    OK(mf_group_alltoallv(group, sent, counts, NULL, came, equal, NULL, MF_F64, NULL));
    for (size_t at = 0; at < size * (rank + 1); at++) {
        TRUE(came[at] == element((uint32_t)(at / (rank + 1)), at % (rank + 1)));
    }
    free(counts), free(places), free(own), free(all), free(sent), free(came), free(equal);
}

static void messages_arrive_in_order_by_source_and_tag(void) {
    uint32_t next = (rank + 1) % size, last = (rank + size - 1) % size;
    mf_message message;
    int32_t out[3] = {(int32_t)rank, 2, 3}, in[4] = {0};
    OK(mf_group_sendrecv(group, out, 3, next, 5, in, 4, last, 5, MF_I32, &message));
    TRUE(message.source == last && message.tag == 5 && message.length == 12 && in[0] == (int32_t)last && in[2] == 3);
    /* Over its own memory. */
    OK(mf_group_sendrecv(group, out, 3, next, 6, out, 3, last, MF_ANY_TAG, MF_I32, &message));
    TRUE(message.tag == 6 && out[0] == (int32_t)last);
    /* Nobody is there: nothing happens. */
    OK(mf_group_send(group, out, 3, MF_I32, MF_NO_RANK, 0));
    OK(mf_group_recv(group, in, 4, MF_I32, MF_NO_RANK, 0, &message));
    TRUE(message.source == MF_NO_RANK && message.length == 0 && in[0] == (int32_t)last);
    OK(mf_group_sendrecv(group, out, 3, rank + 1 < size ? rank + 1 : MF_NO_RANK, 7, in, 4, rank ? rank - 1 : MF_NO_RANK, 7,
                         MF_I32, &message));
    TRUE(message.source == (rank ? rank - 1 : MF_NO_RANK));
    if (rank == 0) {
        for (uint32_t r = 1; r < size; r++) {
            OK(mf_group_probe(group, MF_ANY_RANK, 9, &message));
            TRUE(message.length == sizeof(double) * message.source && message.tag == 9);
            size_t count = message.length / sizeof(double);
            double *into = malloc(message.length);
            OK(mf_group_recv(group, into, count, MF_F64, message.source, 9, NULL));
            for (size_t i = 0; i < count; i++) {
                TRUE(into[i] == element(message.source, i));
            }
            free(into);
        }
    } else {
        double *own = elements(rank);
        OK(mf_group_send(group, own, rank, MF_F64, 0, 9));
        free(own);
    }
    bool came = true;
    OK(mf_group_iprobe(group, MF_ANY_RANK, 77, &message, &came));
    TRUE(!came);
    /* To oneself, and it is there at once. */
    OK(mf_group_send(group, out, 3, MF_I32, rank, 77));
    OK(mf_group_iprobe(group, rank, 77, &message, &came));
    TRUE(came && message.length == 12);
    IS(mf_group_recv(group, in, 1, MF_I32, rank, 77, &message), MF_TRUNCATED);
    OK(mf_group_barrier(group, NULL));
}

static void what_goes_on_in_the_background_ends(void) {
    uint32_t next = (rank + 1) % size, last = (rank + size - 1) % size;
    double *out = elements(MOST), *in = calloc(MOST, sizeof *in), sum = rank, all = 0;
    mf_request *requests[4];
    mf_message message;
    OK(mf_group_irecv(group, in, MOST, MF_F64, last, 1, &requests[0]));
    OK(mf_group_isend(group, out, MOST, MF_F64, next, 1, &requests[1]));
    OK(mf_group_allreduce(group, &sum, &all, 1, MF_F64, MF_SUM, &requests[2]));
    OK(mf_group_barrier(group, &requests[3]));
    OK(mf_request_wait_all(requests, 4));
    OK(mf_request_wait(requests[0], &message)); /* says it again */
    TRUE(message.source == last && message.length == MOST * sizeof *in);
    TRUE(all == size * (size - 1) / 2.0);
    for (size_t i = 0; i < MOST; i++) {
        TRUE(in[i] == element(last, i));
    }
    for (int i = 0; i < 4; i++) {
        mf_request_free(requests[i]);
    }
    /* A receive that nothing comes for is not over, and can be cancelled. */
    bool over = true;
    OK(mf_group_irecv(group, in, MOST, MF_F64, last, 1234, &requests[0]));
    OK(mf_request_test(requests[0], &message, &over));
    TRUE(!over);
    mf_request_free(requests[0]);
    OK(mf_group_isend(group, out, 1, MF_F64, MF_NO_RANK, 0, &requests[0]));
    OK(mf_request_test(requests[0], &message, &over));
    TRUE(over);
    mf_request_free(requests[0]);
    /* Every collective, in the background, beside the same at once. */
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
        OK(mf_request_wait(requests[0], NULL));                                                                        \
        mf_request_free(requests[0]);                                                                                  \
        TRUE(memcmp(one, two, size * sizeof *one) == 0);                                                               \
    } while (0)
    BOTH(mf_group_gather, group, out, 1, MF_F64, into, 0);
    BOTH(mf_group_gatherv, group, out, 1, MF_F64, into, ones, NULL, 0);
    BOTH(mf_group_scatter, group, out, into, 1, MF_F64, 0);
    BOTH(mf_group_scatterv, group, out, ones, NULL, into, 1, MF_F64, 0);
    BOTH(mf_group_allgather, group, out, 1, MF_F64, into);
    BOTH(mf_group_allgatherv, group, out, 1, MF_F64, into, ones, NULL);
    BOTH(mf_group_alltoall, group, out, into, 1, MF_F64);
    BOTH(mf_group_alltoallv, group, out, ones, NULL, into, ones, NULL, MF_F64);
    BOTH(mf_group_reduce, group, out, into, 1, MF_F64, MF_SUM, 0);
    BOTH(mf_group_allreduce, group, out, into, 1, MF_F64, MF_PRODUCT);
    BOTH(mf_group_reduce_scatter, group, out, into, ones, MF_F64, MF_MIN);
    BOTH(mf_group_scan, group, out, into, 1, MF_F64, MF_SUM);
    BOTH(mf_group_exscan, group, out, into, 1, MF_F64, MF_SUM);
    BOTH(mf_group_bcast, group, (*into = rank, into), 1, MF_F64, size - 1);
    TRUE(*two == size - 1);
    free(out), free(in), free(one), free(two), free(ones);
}

static void parts_of_a_group_are_groups(void) {
    mf_group *part, *copy, *none;
    OK(mf_group_split(group, rank % 2, -(int64_t)rank, &part)); /* the highest first */
    uint32_t of = (size + 1 - rank % 2) / 2, member;
    TRUE(mf_group_size(part) == of && mf_group_rank(part) == of - 1 - rank / 2);
    OK(mf_group_member(part, mf_group_rank(part), &member));
    TRUE(member == rank);
    IS(mf_group_member(part, of, &member), MF_INVALID_REQUEST);
    uint32_t sum = rank, want = 0;
    for (uint32_t r = rank % 2; r < size; r += 2) {
        want += r;
    }
    OK(mf_group_allreduce(part, &sum, &sum, 1, MF_U32, MF_SUM, NULL));
    TRUE(sum == want);
    OK(mf_group_split(group, rank == 0 ? MF_NO_COLOR : 1, 0, &none));
    TRUE((none == NULL) == (rank == 0));
    OK(mf_group_dup(group, &copy));
    /* Messages of one do not come in the other. */
    bool came;
    OK(mf_group_send(copy, &sum, 1, MF_U32, rank, 3));
    OK(mf_group_iprobe(group, rank, 3, NULL, &came));
    TRUE(!came);
    OK(mf_group_iprobe(copy, rank, 3, NULL, &came));
    TRUE(came);
    mf_group_free(part), mf_group_free(none), mf_group_free(copy);
}

static void misuse_is_an_error_and_harms_nothing(void) {
    double out[2] = {1, 2}, in[2];
    size_t huge[1] = {SIZE_MAX};
    mf_request *request = (mf_request *)&request;
    IS(mf_group_send(group, out, 2, 99, 0, 0), MF_INVALID_REQUEST);
    SAYS("no datatype 99");
    IS(mf_group_send(group, out, SIZE_MAX / 2, MF_F64, 0, 0), MF_INVALID_REQUEST);
    IS(mf_group_send(group, NULL, 2, MF_F64, 0, 0), MF_INVALID_REQUEST);
    SAYS("the message, which has a length, is NULL");
    IS(mf_group_send(group, out, 2, MF_F64, size, 0), MF_INVALID_REQUEST);
    SAYS("there is no rank");
    IS(mf_group_send(group, out, 2, MF_F64, 0, MF_ANY_TAG), MF_INVALID_REQUEST);
    IS(mf_group_isend(group, out, 2, MF_F64, size, 0, &request), MF_INVALID_REQUEST);
    TRUE(request == NULL);
    IS(mf_group_isend(group, out, 2, MF_F64, 0, 0, NULL), MF_INVALID_REQUEST);
    IS(mf_group_allreduce(group, out, in, 2, MF_F64, 0, NULL), MF_INVALID_REQUEST);
    SAYS("no operation 0");
    IS(mf_group_allreduce(group, out, in, 2, MF_F64, MF_BIT_OR, NULL), MF_INVALID_REQUEST);
    SAYS("bitwise or of f64");
    IS(mf_group_bcast(group, in, 2, MF_F64, size, NULL), MF_INVALID_REQUEST);
    IS(mf_group_allgatherv(group, out, 1, MF_F64, in, NULL, NULL, NULL), MF_INVALID_REQUEST);
    SAYS("counts are NULL");
    if (size == 1) {
        IS(mf_group_allgatherv(group, out, 1, MF_F64, in, huge, NULL, NULL), MF_INVALID_REQUEST);
    }
    IS(mf_operation_create(NULL, NULL, true, &rank), MF_INVALID_REQUEST);
    OK(mf_group_barrier(group, NULL));
}

/* Without `mayfly run`: by a name and a secret. */
static void meet(char **where) {
    mf_group_options options = {0};
    mf_message message;
    IS(mf_group_join(&options, &group), MF_INVALID_REQUEST);
    SAYS("mf_group_options_init");
    OK(mf_group_options_init(&options));
    IS(mf_group_join(&options, &group), MF_INVALID_REQUEST);
    SAYS("the rendezvous is NULL");
    options.rendezvous = where[0], options.name = "shells", options.run = "1";
    options.secret = "not hexadecimal";
    options.ranks = (uint32_t)atoi(where[2]);
    options.key = "beef";
    IS(mf_group_join(&options, &group), MF_INVALID_REQUEST);
    SAYS("the rendezvous' key");
    options.key = where[1];
    IS(mf_group_join(&options, &group), MF_INVALID_REQUEST);
    SAYS("hexadecimal");
    TRUE(group == NULL);
    options.secret = "00112233445566778899aabbccddeeff";
    options.spin_us = 500;
    options.deadline_s = 2;
    OK(mf_group_join(&options, &group));
    /* Nobody sends this: it ends all the same. */
    IS(mf_group_recv(group, NULL, 0, MF_BYTES, MF_ANY_RANK, 55, &message), MF_TIMED_OUT);
    mf_request *request;
    OK(mf_group_irecv(group, NULL, 0, MF_BYTES, MF_ANY_RANK, 55, &request));
    IS(mf_request_wait(request, &message), MF_TIMED_OUT);
    IS(mf_request_wait(request, &message), MF_INVALID_REQUEST);
    mf_request_free(request);
    /* A child has no place in the group of its parent. */
    pid_t child = fork();
    if (child == 0) {
        bool refused = mf_group_barrier(group, NULL) == MF_FORKED;
        mf_group_free(group);
        _exit(refused ? 0 : 1);
    }
    int status;
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    mf_group_free(group);
    options.run = "2", options.deadline_s = 60;
    OK(mf_group_join(&options, &group));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "meet") == 0) {
        TRUE(argc == 5);
        meet(argv + 2);
    } else {
        OK(mf_group_join(NULL, &group));
    }
    rank = mf_group_rank(group), size = mf_group_size(group);
    if (strcmp(what, "mismatch") == 0) {
        int32_t one = 1, all[64];
        mf_status status = rank == 0 ? mf_group_allreduce(group, &one, all, 1, MF_I32, MF_SUM, NULL)
                                     : mf_group_allgather(group, &one, 1, MF_I32, all, NULL);
        IS(status, MF_MISMATCH);
        SAYS("rank 0 called allreduce of 4 bytes with sum of i32");
        SAYS("called allgather of 4 bytes");
    } else if (strcmp(what, "die") == 0) {
        mf_group *rest;
        uint32_t victim = size - 1, sum;
        /* It goes when all the others wait for nothing but that. */
        for (uint32_t r = 0; rank == victim && r < victim; r++) {
            OK(mf_group_recv(group, NULL, 0, MF_BYTES, r, 1, NULL));
        }
        if (rank == victim) {
            raise(SIGKILL);
        }
        OK(mf_group_send(group, NULL, 0, MF_BYTES, victim, 1));
        char name[32];
        snprintf(name, sizeof name, "rank %u", victim);
        IS(mf_group_recv(group, &sum, 1, MF_U32, victim, 0, NULL), MF_RANK_LOST);
        SAYS(name);
        IS(mf_group_barrier(group, NULL), MF_RANK_LOST);
        SAYS(name);
        OK(mf_group_shrink(group, &rest));
        TRUE(mf_group_size(rest) == size - 1);
        sum = mf_group_rank(rest);
        OK(mf_group_allreduce(rest, &sum, &sum, 1, MF_U32, MF_SUM, NULL));
        TRUE(sum == (size - 1) * (size - 2) / 2);
        mf_group_free(rest);
    } else {
        reductions_combine_what_all_ranks_have();
        reduce_scatter_gives_each_rank_its_part();
        every_datatype_has_its_size_and_adds_up();
        the_largest_value_is_told_with_its_place();
        operations_of_the_programs_own_are_called();
        blocks_of_one_length_go_where_they_belong();
        blocks_of_any_length_go_where_they_belong();
        messages_arrive_in_order_by_source_and_tag();
        what_goes_on_in_the_background_ends();
        parts_of_a_group_are_groups();
        misuse_is_an_error_and_harms_nothing();
    }
    mf_group_free(group);
    printf("all held on %u of %u\n", rank, size);
    return 0;
}
