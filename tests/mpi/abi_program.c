/* A C program for any MPI with the standard's binary interface: constants of every kind, and functions of programs that
 * MPI calls with handles. The argument names a file that all ranks can write. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_MPI_ABI_HEADER
#include <mpi_abi.h>
#else
#include <mpi.h>
#endif

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);      \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static int rank, size;

static int class_of(int code) {
    int class;
    OK(MPI_Error_class(code, &class));
    return class;
}

static void version(void) {
    int major, minor, flag, set;
    char value[16];
    unsigned char yes[4] = {1, 2, 3, 4}, no[4] = {0, 0, 0, 0}, one[4], other[4];
    MPI_Info info;
    OK(MPI_Abi_get_version(&major, &minor));
    CHECK(major == MPI_ABI_VERSION && minor == MPI_ABI_SUBVERSION);
    OK(MPI_Get_version(&major, &minor));
    CHECK(major == MPI_VERSION && minor == MPI_SUBVERSION);
    OK(MPI_Abi_get_info(&info));
    OK(MPI_Info_get(info, "mpi_count_size", 15, value, &flag));
    CHECK(flag && atoi(value) == (int)sizeof(MPI_Count));
    OK(MPI_Info_get(info, "mpi_aint_size", 15, value, &flag));
    CHECK(flag && atoi(value) == (int)sizeof(MPI_Aint));
    OK(MPI_Info_free(&info));
    OK(MPI_Abi_get_fortran_info(&info));
    CHECK(info == MPI_INFO_NULL);
    OK(MPI_Abi_get_fortran_booleans(4, one, other, &set));
    CHECK(!set);
    OK(MPI_Abi_set_fortran_booleans(4, yes, no));
    OK(MPI_Abi_get_fortran_booleans(4, one, other, &set));
    CHECK(set && memcmp(one, yes, 4) == 0 && memcmp(other, no, 4) == 0);
    CHECK(class_of(MPI_Abi_set_fortran_booleans(4, yes, no)) == MPI_ERR_ABI);
    CHECK(sizeof(MPI_Status) == 32 && sizeof(MPI_Comm) == sizeof(void *));
}

static void datatypes(void) {
    const struct {
        MPI_Datatype type;
        int size;
    } all[] = {
        {MPI_CHAR, 1}, {MPI_SIGNED_CHAR, 1}, {MPI_UNSIGNED_CHAR, 1}, {MPI_BYTE, 1}, {MPI_PACKED, 1},
        {MPI_SHORT, sizeof(short)}, {MPI_UNSIGNED_SHORT, sizeof(short)}, {MPI_INT, sizeof(int)},
        {MPI_UNSIGNED, sizeof(int)}, {MPI_LONG, sizeof(long)}, {MPI_UNSIGNED_LONG, sizeof(long)}, {MPI_LONG_LONG, 8},
        {MPI_LONG_LONG_INT, 8}, {MPI_UNSIGNED_LONG_LONG, 8}, {MPI_FLOAT, 4}, {MPI_DOUBLE, 8},
        {MPI_LONG_DOUBLE, sizeof(long double)}, {MPI_WCHAR, sizeof(wchar_t)}, {MPI_C_BOOL, 1}, {MPI_INT8_T, 1},
        {MPI_INT16_T, 2}, {MPI_INT32_T, 4}, {MPI_INT64_T, 8}, {MPI_UINT8_T, 1}, {MPI_UINT16_T, 2}, {MPI_UINT32_T, 4},
        {MPI_UINT64_T, 8}, {MPI_AINT, sizeof(MPI_Aint)}, {MPI_COUNT, sizeof(MPI_Count)},
        {MPI_OFFSET, sizeof(MPI_Offset)}, {MPI_C_COMPLEX, 8}, {MPI_C_FLOAT_COMPLEX, 8}, {MPI_C_DOUBLE_COMPLEX, 16},
        {MPI_C_LONG_DOUBLE_COMPLEX, 2 * sizeof(long double)}, {MPI_CXX_BOOL, 1}, {MPI_CXX_FLOAT_COMPLEX, 8},
        {MPI_CXX_DOUBLE_COMPLEX, 16}, {MPI_CXX_LONG_DOUBLE_COMPLEX, 2 * sizeof(long double)}, {MPI_FLOAT_INT, 8},
        {MPI_DOUBLE_INT, 12}, {MPI_LONG_INT, 12}, {MPI_2INT, 8}, {MPI_SHORT_INT, 6},
        {MPI_LONG_DOUBLE_INT, sizeof(long double) + 4}, {MPI_INTEGER, 4}, {MPI_REAL, 4}, {MPI_DOUBLE_PRECISION, 8},
        {MPI_COMPLEX, 8}, {MPI_DOUBLE_COMPLEX, 16}, {MPI_LOGICAL, 4}, {MPI_CHARACTER, 1}, {MPI_2INTEGER, 8},
        {MPI_2REAL, 8}, {MPI_2DOUBLE_PRECISION, 16}, {MPI_INTEGER1, 1}, {MPI_INTEGER2, 2}, {MPI_INTEGER4, 4},
        {MPI_INTEGER8, 8}, {MPI_INTEGER16, 16}, {MPI_REAL2, 2}, {MPI_REAL4, 4}, {MPI_REAL8, 8}, {MPI_REAL16, 16},
        {MPI_COMPLEX4, 4}, {MPI_COMPLEX8, 8}, {MPI_COMPLEX16, 16}, {MPI_COMPLEX32, 32}, {MPI_LOGICAL1, 1},
        {MPI_LOGICAL2, 2}, {MPI_LOGICAL4, 4}, {MPI_LOGICAL8, 8}, {MPI_LOGICAL16, 16},
    };
    int found, integers, addresses, types, combiner, order[2] = {4, 6}, part[2] = {2, 3}, start[2] = {1, 2};
    MPI_Datatype array, dup, matched, of;
    int numbers[8];
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        OK(MPI_Type_size(all[at].type, &found));
        if (found != all[at].size) fprintf(stderr, "datatype %zu has %d bytes\n", at, found);
        CHECK(found == all[at].size);
        OK(MPI_Type_get_envelope(all[at].type, &integers, &addresses, &types, &combiner));
        CHECK(combiner == MPI_COMBINER_NAMED);
    }
    CHECK(MPI_Type_size(MPI_DATATYPE_NULL, &found) != MPI_SUCCESS);
    OK(MPI_Type_create_subarray(2, order, part, start, MPI_ORDER_FORTRAN, MPI_INT, &array));
    OK(MPI_Type_get_envelope(array, &integers, &addresses, &types, &combiner));
    CHECK(combiner == MPI_COMBINER_SUBARRAY && integers == 8 && addresses == 0 && types == 1);
    OK(MPI_Type_get_contents(array, 8, 0, 1, numbers, NULL, &of));
    CHECK(numbers[7] == MPI_ORDER_FORTRAN && of == MPI_INT);
    OK(MPI_Type_dup(array, &dup));
    OK(MPI_Type_get_envelope(dup, &integers, &addresses, &types, &combiner));
    CHECK(combiner == MPI_COMBINER_DUP);
    OK(MPI_Type_free(&dup));
    OK(MPI_Type_free(&array));
    CHECK(array == MPI_DATATYPE_NULL);
    int sizes[1] = {10}, kind[1] = {MPI_DISTRIBUTE_CYCLIC}, argument[1] = {MPI_DISTRIBUTE_DFLT_DARG}, grid[1] = {2};
    OK(MPI_Type_create_darray(2, 1, 1, sizes, kind, argument, grid, MPI_ORDER_C, MPI_INT, &array));
    OK(MPI_Type_size(array, &found));
    CHECK(found == 5 * (int)sizeof(int));
    OK(MPI_Type_free(&array));
    OK(MPI_Type_match_size(MPI_TYPECLASS_REAL, 8, &matched));
    CHECK(matched == MPI_REAL8);
    OK(MPI_Type_match_size(MPI_TYPECLASS_INTEGER, 2, &matched));
    CHECK(matched == MPI_INTEGER2);
    CHECK(MPI_Type_fromint(MPI_Type_toint(MPI_DOUBLE)) == MPI_DOUBLE);
}

static void operations(void) {
    int sum = rank + 1, least = rank, most = rank, all = 1, bits = 1 << rank, product = 2, flag;
    struct {
        double value;
        int at;
    } pair = {rank == 1 ? -1.0 : 1.0, rank};
    OK(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    OK(MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    OK(MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    OK(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD));
    OK(MPI_Allreduce(MPI_IN_PLACE, &bits, 1, MPI_INT, MPI_BOR, MPI_COMM_WORLD));
    OK(MPI_Allreduce(MPI_IN_PLACE, &product, 1, MPI_INT, MPI_PROD, MPI_COMM_WORLD));
    OK(MPI_Allreduce(MPI_IN_PLACE, &pair, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD));
    CHECK(sum == size * (size + 1) / 2 && least == 0 && most == size - 1 && all == 1);
    CHECK(bits == (1 << size) - 1 && product == 1 << size && pair.at == (size > 1 ? 1 : 0));
    int one = 6, other = 5;
    OK(MPI_Reduce_local(&one, &other, 1, MPI_INT, MPI_BAND));
    CHECK(other == 4);
    OK(MPI_Reduce_local(&one, &other, 1, MPI_INT, MPI_BXOR));
    CHECK(other == 2);
    OK(MPI_Reduce_local(&one, &other, 1, MPI_INT, MPI_NO_OP));
    CHECK(other == 2);
    OK(MPI_Reduce_local(&one, &other, 1, MPI_INT, MPI_REPLACE));
    CHECK(other == 6);
    OK(MPI_Reduce_local(&one, &other, 1, MPI_INT, MPI_LXOR));
    CHECK(other == 0);
    OK(MPI_Reduce_local(&one, &other, 1, MPI_INT, MPI_LOR));
    CHECK(other == 1);
    OK(MPI_Op_commutative(MPI_MAXLOC, &flag));
    CHECK(flag);
    CHECK(class_of(MPI_Reduce_local(&one, &other, 1, MPI_INT, MPI_OP_NULL)) == MPI_ERR_OP);
}

static MPI_Datatype expected_type;

/* Not commutative: the product of matrices of two rows. */
static void multiply(void *left, void *right, int *count, MPI_Datatype *type) {
    long *one = left, *other = right;
    CHECK(*type == expected_type);
    for (int at = 0; at < *count; at++, one += 4, other += 4) {
        long product[4] = {
            one[0] * other[0] + one[1] * other[2], one[0] * other[1] + one[1] * other[3],
            one[2] * other[0] + one[3] * other[2], one[2] * other[1] + one[3] * other[3],
        };
        memcpy(other, product, sizeof product);
    }
}

static void own_operation(void) {
    long matrix[4] = {1, rank + 1, 0, 1}, expected = (long)size * (size + 1) / 2;
    MPI_Op op;
    int flag;
    OK(MPI_Type_contiguous(4, MPI_LONG, &expected_type));
    OK(MPI_Type_commit(&expected_type));
    OK(MPI_Op_create(multiply, 0, &op));
    CHECK((uintptr_t)op >= 4096);
    OK(MPI_Op_commutative(op, &flag));
    CHECK(!flag);
    OK(MPI_Allreduce(MPI_IN_PLACE, matrix, 1, expected_type, op, MPI_COMM_WORLD));
    CHECK(matrix[1] == expected && matrix[0] == 1 && matrix[2] == 0);
    OK(MPI_Op_free(&op));
    CHECK(op == MPI_OP_NULL);
    OK(MPI_Type_free(&expected_type));
}

static int copies, deletions;
static void *last_object;

static int copy_comm(MPI_Comm comm, int key, void *state, void *value, void *copied, int *flag) {
    (void)key;
    copies += *(int *)state;
    last_object = comm;
    *(void **)copied = (char *)value + 1;
    *flag = 1;
    return MPI_SUCCESS;
}

static int delete_comm(MPI_Comm comm, int key, void *value, void *state) {
    (void)key, (void)value;
    deletions += *(int *)state;
    last_object = comm;
    return MPI_SUCCESS;
}

static int copy_type(MPI_Datatype type, int key, void *state, void *value, void *copied, int *flag) {
    (void)key, (void)state, (void)copied, (void)value;
    last_object = type;
    *flag = 0;
    return MPI_SUCCESS;
}

static int delete_type(MPI_Datatype type, int key, void *value, void *state) {
    (void)key, (void)value, (void)state;
    last_object = type;
    deletions++;
    return MPI_SUCCESS;
}

static void attributes(void) {
    static int step = 10, target;
    int key, plain, none, flag, *bound;
    void *value;
    MPI_Comm dup;
    MPI_Datatype copy;
    OK(MPI_Comm_create_keyval(copy_comm, delete_comm, &key, &step));
    OK(MPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, &plain, NULL));
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &none, NULL));
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, key, &target));
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, plain, &target));
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, none, &target));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    CHECK(copies == 10 && last_object == (void *)MPI_COMM_WORLD && (uintptr_t)dup >= 4096);
    OK(MPI_Comm_get_attr(dup, key, &value, &flag));
    CHECK(flag && value == (char *)&target + 1);
    OK(MPI_Comm_get_attr(dup, plain, &value, &flag));
    CHECK(flag && value == &target);
    OK(MPI_Comm_get_attr(dup, none, &value, &flag));
    CHECK(!flag);
    MPI_Comm freed = dup;
    OK(MPI_Comm_free(&dup));
    CHECK(deletions == 10 && last_object == (void *)freed && dup == MPI_COMM_NULL);
    OK(MPI_Comm_delete_attr(MPI_COMM_WORLD, key));
    OK(MPI_Comm_delete_attr(MPI_COMM_WORLD, plain));
    OK(MPI_Comm_delete_attr(MPI_COMM_WORLD, none));
    CHECK(deletions == 20);
    OK(MPI_Comm_free_keyval(&key));
    CHECK(key == MPI_KEYVAL_INVALID);
    OK(MPI_Type_create_keyval(copy_type, delete_type, &key, NULL));
    OK(MPI_Type_set_attr(MPI_INT, key, &target));
    OK(MPI_Type_dup(MPI_INT, &copy));
    CHECK(last_object == (void *)MPI_INT);
    OK(MPI_Type_get_attr(copy, key, &value, &flag));
    CHECK(!flag);
    OK(MPI_Type_delete_attr(MPI_INT, key));
    CHECK(deletions == 21);
    OK(MPI_Type_free(&copy));
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &flag));
    CHECK(flag && *bound >= 32767);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &bound, &flag));
    CHECK(flag && *bound >= size);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_IO, &bound, &flag));
    CHECK(flag && *bound == MPI_ANY_SOURCE);
}

static int handled_class;
static void *handled_object;

static void on_comm(MPI_Comm *comm, int *code, ...) {
    handled_object = *comm;
    handled_class = class_of(*code);
}

static void on_file(MPI_File *file, int *code, ...) {
    handled_object = *file;
    handled_class = class_of(*code);
}

static void on_session(MPI_Session *session, int *code, ...) {
    handled_object = *session;
    handled_class = class_of(*code);
}

static void on_window(MPI_Win *window, int *code, ...) {
    handled_object = *window;
    handled_class = class_of(*code);
}

static void handlers(void) {
    MPI_Errhandler handler, found;
    MPI_Session session;
    MPI_Comm comm;
    int value = 0, class, code, length;
    char text[MPI_MAX_ERROR_STRING];
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Comm_create_errhandler(on_comm, &handler));
    OK(MPI_Comm_set_errhandler(comm, handler));
    CHECK(class_of(MPI_Send(&value, 1, MPI_INT, size, 0, comm)) == MPI_ERR_RANK);
    CHECK(handled_class == MPI_ERR_RANK && handled_object == (void *)comm);
    OK(MPI_Comm_get_errhandler(comm, &found));
    CHECK(found == handler);
    OK(MPI_Errhandler_free(&handler));
    CHECK(handler == MPI_ERRHANDLER_NULL);
    OK(MPI_Comm_free(&comm));
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    OK(MPI_Session_create_errhandler(on_session, &handler));
    OK(MPI_Session_set_errhandler(session, handler));
    OK(MPI_Session_call_errhandler(session, MPI_ERR_SERVICE));
    CHECK(handled_class == MPI_ERR_SERVICE && handled_object == (void *)session);
    OK(MPI_Session_finalize(&session));
    CHECK(session == MPI_SESSION_NULL);
    OK(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &found));
    CHECK(found == MPI_ERRORS_RETURN);
    OK(MPI_Add_error_class(&class));
    CHECK(class > MPI_ERR_LASTCODE);
    OK(MPI_Add_error_code(class, &code));
    OK(MPI_Add_error_string(code, "of the program"));
    OK(MPI_Error_string(code, text, &length));
    CHECK(class_of(code) == class && strcmp(text, "of the program") == 0);
    OK(MPI_Error_string(MPI_ERR_LOCKTYPE, text, &length));
    CHECK(strncmp(text, "MPI_ERR_LOCKTYPE", 16) == 0);
}

static int query(void *state, MPI_Status *status) {
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = *(int *)state;
    OK(MPI_Status_set_elements(status, MPI_INT, 3));
    return MPI_Status_set_cancelled(status, 0);
}

static int release(void *state) {
    *(int *)state += 1;
    return MPI_SUCCESS;
}

static int cancel(void *state, int complete) {
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

static void requests(void) {
    int state = 70, count, flag, values[2] = {rank, -1}, index;
    MPI_Request request, pair[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Status status, statuses[2];
    MPI_Message message;
    OK(MPI_Grequest_start(query, release, cancel, &state, &request));
    OK(MPI_Grequest_complete(request));
    OK(MPI_Wait(&request, &status));
    OK(MPI_Get_count(&status, MPI_INT, &count));
    CHECK(request == MPI_REQUEST_NULL && status.MPI_TAG == 70 && count == 3 && state == 71);
    CHECK(status.MPI_SOURCE == MPI_UNDEFINED);
    OK(MPI_Recv(values, 1, MPI_INT, MPI_PROC_NULL, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL && status.MPI_TAG == MPI_ANY_TAG);
    OK(MPI_Waitany(2, pair, &index, MPI_STATUS_IGNORE));
    CHECK(index == MPI_UNDEFINED);
    OK(MPI_Irecv(&values[1], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &pair[0]));
    OK(MPI_Isend(&values[0], 1, MPI_INT, 0, 9, MPI_COMM_SELF, &pair[1]));
    OK(MPI_Waitall(2, pair, statuses));
    CHECK(values[1] == rank && statuses[0].MPI_TAG == 9 && statuses[0].MPI_SOURCE == 0);
    CHECK(statuses[0].MPI_ERROR == MPI_SUCCESS && pair[0] == MPI_REQUEST_NULL);
    OK(MPI_Isend(&values[0], 1, MPI_INT, 0, 8, MPI_COMM_SELF, &request));
    OK(MPI_Improbe(0, 8, MPI_COMM_SELF, &flag, &message, &status));
    CHECK(flag && message != MPI_MESSAGE_NULL);
    OK(MPI_Mrecv(&values[1], 1, MPI_INT, &message, MPI_STATUS_IGNORE));
    CHECK(message == MPI_MESSAGE_NULL);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Mprobe(MPI_PROC_NULL, 0, MPI_COMM_SELF, &message, &status));
    CHECK(message == MPI_MESSAGE_NO_PROC);
    /* From absolute addresses. */
    MPI_Aint addresses[1];
    int length[1] = {1}, got = -1;
    MPI_Datatype absolute;
    OK(MPI_Get_address(&values[0], &addresses[0]));
    OK(MPI_Type_create_hindexed(1, length, addresses, MPI_INT, &absolute));
    OK(MPI_Type_commit(&absolute));
    OK(MPI_Sendrecv(MPI_BOTTOM, 1, absolute, 0, 1, &got, 1, MPI_INT, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    CHECK(got == rank);
    OK(MPI_Type_free(&absolute));
}

static void communicators(void) {
    MPI_Comm part, grid, graph;
    MPI_Group world, empty;
    int result, flag, kind, sizes[1] = {0}, wraps[1] = {0}, before, after, number, weighted, found;
    OK(MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &part));
    CHECK((part == MPI_COMM_NULL) == (rank == 0));
    if (part != MPI_COMM_NULL) OK(MPI_Comm_free(&part));
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &part));
    OK(MPI_Comm_size(part, &found));
    CHECK(found == size);
    OK(MPI_Comm_compare(MPI_COMM_WORLD, part, &result));
    CHECK(result == MPI_CONGRUENT);
    OK(MPI_Comm_compare(part, part, &result));
    CHECK(result == MPI_IDENT);
    OK(MPI_Comm_compare(MPI_COMM_WORLD, MPI_COMM_SELF, &result));
    CHECK(result == (size > 1 ? MPI_UNEQUAL : MPI_CONGRUENT));
    OK(MPI_Comm_test_inter(part, &flag));
    CHECK(!flag);
    OK(MPI_Comm_free(&part));
    OK(MPI_Comm_group(MPI_COMM_WORLD, &world));
    OK(MPI_Group_difference(world, world, &empty));
    CHECK(empty == MPI_GROUP_EMPTY);
    int nobody[1] = {MPI_PROC_NULL}, translated[1];
    OK(MPI_Group_translate_ranks(world, 1, nobody, world, translated));
    CHECK(translated[0] == MPI_PROC_NULL);
    OK(MPI_Group_free(&world));
    CHECK(world == MPI_GROUP_NULL);
    OK(MPI_Topo_test(MPI_COMM_WORLD, &kind));
    CHECK(kind == MPI_UNDEFINED);
    OK(MPI_Dims_create(size, 1, sizes));
    OK(MPI_Cart_create(MPI_COMM_WORLD, 1, sizes, wraps, 0, &grid));
    OK(MPI_Topo_test(grid, &kind));
    CHECK(kind == MPI_CART);
    OK(MPI_Cart_shift(grid, 0, 1, &before, &after));
    CHECK(before == (rank > 0 ? rank - 1 : MPI_PROC_NULL) && after == (rank + 1 < size ? rank + 1 : MPI_PROC_NULL));
    OK(MPI_Comm_free(&grid));
    int next[1] = {(rank + 1) % size}, last[1] = {(rank + size - 1) % size};
    OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, last, MPI_UNWEIGHTED, 1, next, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                      &graph));
    OK(MPI_Topo_test(graph, &kind));
    OK(MPI_Dist_graph_neighbors_count(graph, &number, &found, &weighted));
    CHECK(kind == MPI_DIST_GRAPH && number == 1 && found == 1 && !weighted);
    OK(MPI_Comm_free(&graph));
    OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 0, NULL, MPI_WEIGHTS_EMPTY, 0, NULL, MPI_WEIGHTS_EMPTY,
                                      MPI_INFO_NULL, 0, &graph));
    OK(MPI_Dist_graph_neighbors_count(graph, &number, &found, &weighted));
    CHECK(number == 0 && found == 0 && weighted);
    OK(MPI_Comm_free(&graph));
    CHECK(MPI_Comm_fromint(MPI_Comm_toint(MPI_COMM_WORLD)) == MPI_COMM_WORLD);
}

static void windows(void) {
    MPI_Win window;
    int *memory, *flavor, *model, *unit, flag, one = 1, next = (rank + 1) % size;
    MPI_Aint *bytes;
    MPI_Errhandler handler;
    OK(MPI_Win_allocate(2 * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
    OK(MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, &flavor, &flag));
    CHECK(flag && *flavor == MPI_WIN_FLAVOR_ALLOCATE);
    OK(MPI_Win_get_attr(window, MPI_WIN_MODEL, &model, &flag));
    CHECK(flag && *model == MPI_WIN_UNIFIED);
    OK(MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, &unit, &flag));
    CHECK(flag && *unit == sizeof(int));
    OK(MPI_Win_get_attr(window, MPI_WIN_SIZE, &bytes, &flag));
    CHECK(flag && *bytes == 2 * sizeof(int));
    memory[0] = memory[1] = 0;
    OK(MPI_Win_fence(MPI_MODE_NOPRECEDE, window));
    OK(MPI_Accumulate(&one, 1, MPI_INT, next, 0, 1, MPI_INT, MPI_SUM, window));
    OK(MPI_Accumulate(&rank, 1, MPI_INT, next, 1, 1, MPI_INT, MPI_REPLACE, window));
    OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));
    CHECK(memory[0] == 1 && memory[1] == (rank + size - 1) % size);
    OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, window));
    int old = -1;
    OK(MPI_Fetch_and_op(NULL, &old, MPI_INT, next, 1, MPI_NO_OP, window));
    OK(MPI_Win_unlock(next, window));
    CHECK(old == rank);
    OK(MPI_Win_lock(MPI_LOCK_SHARED, next, MPI_MODE_NOCHECK, window));
    OK(MPI_Put(&one, 1, MPI_INT, MPI_PROC_NULL, 0, 1, MPI_INT, window));
    OK(MPI_Win_unlock(next, window));
    OK(MPI_Win_create_errhandler(on_window, &handler));
    OK(MPI_Win_set_errhandler(window, handler));
    CHECK(class_of(MPI_Win_lock(12345, next, 0, window)) == MPI_ERR_LOCKTYPE);
    CHECK(handled_class == MPI_ERR_LOCKTYPE && handled_object == (void *)window);
    OK(MPI_Win_free(&window));
    CHECK(window == MPI_WIN_NULL);
}

static void files(const char *path) {
    MPI_File file;
    MPI_Status status;
    MPI_Errhandler handler;
    MPI_Offset place;
    MPI_Datatype element, pattern;
    char representation[MPI_MAX_DATAREP_STRING];
    int mode, word = 100 + rank, back = 0, count;
    CHECK(class_of(MPI_File_open(MPI_COMM_WORLD, "/none/such", MPI_MODE_RDONLY, MPI_INFO_NULL, &file)) ==
          MPI_ERR_NO_SUCH_FILE);
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL,
                     &file));
    CHECK((uintptr_t)file >= 4096);
    OK(MPI_File_get_amode(file, &mode));
    CHECK(mode == (MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE));
    OK(MPI_File_get_view(file, &place, &element, &pattern, representation));
    CHECK(element == MPI_BYTE && strcmp(representation, "native") == 0);
    OK(MPI_File_write_at_all(file, rank * sizeof word, &word, 1, MPI_INT, &status));
    OK(MPI_Get_count(&status, MPI_INT, &count));
    CHECK(count == 1);
    OK(MPI_File_sync(file));
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_File_seek(file, -(MPI_Offset)sizeof word, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &place));
    CHECK(place == (size - 1) * (MPI_Offset)sizeof word);
    OK(MPI_File_read(file, &back, 1, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(back == 100 + size - 1);
    OK(MPI_File_seek(file, 0, MPI_SEEK_SET));
    OK(MPI_File_seek(file, rank * sizeof word, MPI_SEEK_CUR));
    OK(MPI_File_read(file, &back, 1, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(back == word);
    OK(MPI_File_create_errhandler(on_file, &handler));
    OK(MPI_File_set_errhandler(file, handler));
    CHECK(class_of(MPI_File_seek(file, 0, 12345)) == MPI_ERR_ARG);
    CHECK(handled_class == MPI_ERR_ARG && handled_object == (void *)file);
    OK(MPI_File_close(&file));
    CHECK(file == MPI_FILE_NULL);
}

int main(int argc, char **argv) {
    int provided;
    CHECK(argc == 2);
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided));
    CHECK(provided >= MPI_THREAD_SERIALIZED && provided <= MPI_THREAD_MULTIPLE);
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    version();
    datatypes();
    operations();
    own_operation();
    attributes();
    handlers();
    requests();
    communicators();
    windows();
    files(argv[1]);
    printf("rank %d of %d is done\n", rank, size);
    return MPI_Finalize();
}
