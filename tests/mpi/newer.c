/* A C program for partitioned messages, attached buffers, datatypes of Fortran and the interface for tools. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_MPICH_HEADER
#include <mpi.h>
#else
#include "mpich.h"
#include "mpich_tools.h"
#endif

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);      \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static int rank, size;

static int class_of(int code) {
    int class;
    CHECK(MPI_Error_class(code, &class) == MPI_SUCCESS);
    return class;
}

enum { THREADS = 4, PARTS = 32, ELEMENTS = 3000, ROUNDS = 3 };

static int values[PARTS * ELEMENTS];
static MPI_Request partitioned;

/* Fills a quarter of the partitions, the last one first, and hands each over. */
static void *fill(void *argument) {
    int own = *(int *)argument, round = ((int *)argument)[1];
    for (int part = PARTS - 1; part >= 0; part--) {
        if (part % THREADS != own) continue;
        for (int at = 0; at < ELEMENTS; at++) values[part * ELEMENTS + at] = round * 1000000 + rank * 100000 + part;
        CHECK(MPI_Pready(part, partitioned) == MPI_SUCCESS);
    }
    return NULL;
}

/* Threads send parts around a ring; the receiver divides the message differently, and one side uses a vector. */
static void threads_send_partitions(int received_parts, int use_vector) {
    int next = (rank + 1) % size, last = (rank + size - 1) % size, count = PARTS * ELEMENTS / received_parts, flag;
    int stride = use_vector ? 2 : 1;
    int *into = malloc(sizeof(int) * PARTS * ELEMENTS * stride);
    MPI_Datatype spread;
    MPI_Request receive;
    MPI_Status status;
    MPI_Type_vector(count, 1, stride, MPI_INT, &spread);
    MPI_Type_create_resized(spread, 0, sizeof(int) * count * stride, &spread);
    MPI_Type_commit(&spread);
    CHECK(MPI_Precv_init(into, received_parts, use_vector ? 1 : count, use_vector ? spread : MPI_INT, last, 7,
                         MPI_COMM_WORLD, MPI_INFO_NULL, &receive) == MPI_SUCCESS);
    CHECK(MPI_Psend_init(values, PARTS, ELEMENTS, MPI_INT, next, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &partitioned) ==
          MPI_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t all[THREADS];
        int arguments[THREADS][2], arrived = 0;
        MPI_Start(&receive);
        MPI_Start(&partitioned);
        CHECK(MPI_Test(&partitioned, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && !flag);
        for (int at = 0; at < THREADS; at++) {
            arguments[at][0] = at, arguments[at][1] = round;
            pthread_create(&all[at], NULL, fill, arguments[at]);
        }
        for (int part = 0; part < received_parts; part++) {
            int first = part * count / ELEMENTS;
            do CHECK(MPI_Parrived(receive, part, &arrived) == MPI_SUCCESS);
            while (!arrived);
            CHECK(into[part * count * stride] == round * 1000000 + last * 100000 + first);
        }
        MPI_Wait(&receive, &status);
        for (int at = 0; at < PARTS * ELEMENTS; at++)
            CHECK(into[at * stride] == round * 1000000 + last * 100000 + at / ELEMENTS);
        CHECK(status.MPI_SOURCE == last && status.MPI_TAG == 7);
        CHECK(MPI_Get_count(&status, MPI_INT, &flag) == MPI_SUCCESS && flag == PARTS * ELEMENTS);
        MPI_Wait(&partitioned, MPI_STATUS_IGNORE);
        for (int at = 0; at < THREADS; at++) pthread_join(all[at], NULL);
        CHECK(MPI_Parrived(receive, 0, &arrived) == MPI_SUCCESS && arrived);
    }
    MPI_Request_free(&receive);
    MPI_Request_free(&partitioned);
    MPI_Type_free(&spread);
    free(into);
}

/* Two pairs of requests with one tag match in the order in which they were made, whichever is started first. Other
   receives do not see their messages. */
static void partitions_match_in_order(void) {
    int next = (rank + 1) % size, last = (rank + size - 1) % size, flag;
    int out[2] = {rank * 10, rank * 10 + 1}, in[2] = {-1, -1}, list[1] = {0};
    MPI_Request requests[4];
    for (int at = 0; at < 2; at++) {
        MPI_Psend_init(&out[at], 1, 1, MPI_INT, next, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[at]);
        MPI_Precv_init(&in[at], 1, 1, MPI_INT, last, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2 + at]);
    }
    for (int at = 3; at >= 0; at--) MPI_Start(&requests[at]);
    CHECK(MPI_Pready_list(1, list, requests[1]) == MPI_SUCCESS);
    CHECK(MPI_Pready_range(0, 0, requests[0]) == MPI_SUCCESS);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    CHECK(in[0] == last * 10 && in[1] == last * 10 + 1);
    for (int at = 0; at < 4; at++) MPI_Request_free(&requests[at]);
}

/* A receive that was started lets a sender go on while its own rank waits for something else. */
static void partitions_move_in_other_waits(void) {
    enum { LONG = 1 << 20 };
    char *bytes = calloc(1, LONG);
    MPI_Request request;
    if (rank == 0) {
        MPI_Precv_init(bytes, 1, LONG, MPI_BYTE, 1, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
        MPI_Start(&request);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(bytes[LONG - 1] == 5);
        MPI_Request_free(&request);
    } else if (rank == 1) {
        memset(bytes, 5, LONG);
        MPI_Psend_init(bytes, 4, LONG / 4, MPI_BYTE, 0, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
        MPI_Start(&request);
        MPI_Pready_range(0, 3, request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Request_free(&request);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(bytes);
}

static void partitions_refuse_misuse(void) {
    int buffer[4] = {0}, small[1], flag;
    MPI_Request send, receive, message;
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Psend_init(buffer, -1, 1, MPI_INT, rank, 0, comm, MPI_INFO_NULL, &send)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Psend_init(buffer, 1, -1, MPI_INT, rank, 0, comm, MPI_INFO_NULL, &send)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Psend_init(buffer, 1, 1, MPI_INT, size, 0, comm, MPI_INFO_NULL, &send)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Precv_init(buffer, 1, 1, MPI_INT, MPI_ANY_SOURCE, 0, comm, MPI_INFO_NULL, &receive)) ==
          MPI_ERR_RANK);
    CHECK(class_of(MPI_Precv_init(buffer, 1, 1, MPI_INT, rank, MPI_ANY_TAG, comm, MPI_INFO_NULL, &receive)) ==
          MPI_ERR_TAG);
    MPI_Psend_init(buffer, 2, 2, MPI_INT, rank, 0, comm, MPI_INFO_NULL, &send);
    MPI_Precv_init(small, 1, 1, MPI_INT, rank, 0, comm, MPI_INFO_NULL, &receive);
    CHECK(class_of(MPI_Pready(0, send)) == MPI_ERR_REQUEST);
    MPI_Start(&send);
    MPI_Start(&receive);
    CHECK(class_of(MPI_Pready(2, send)) == MPI_ERR_ARG);
    CHECK(MPI_Pready(0, send) == MPI_SUCCESS);
    CHECK(class_of(MPI_Pready(0, send)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Pready(0, receive)) == MPI_ERR_REQUEST);
    CHECK(class_of(MPI_Parrived(send, 0, &flag)) == MPI_ERR_REQUEST);
    CHECK(class_of(MPI_Parrived(receive, 1, &flag)) == MPI_ERR_ARG);
    CHECK(MPI_Pready(1, send) == MPI_SUCCESS);
    CHECK(class_of(MPI_Wait(&receive, MPI_STATUS_IGNORE)) == MPI_ERR_TRUNCATE);
    CHECK(MPI_Wait(&send, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    MPI_Irecv(small, 1, MPI_INT, rank, 0, comm, &message);
    CHECK(class_of(MPI_Pready(0, message)) == MPI_ERR_REQUEST);
    MPI_Send(buffer, 1, MPI_INT, rank, 0, comm);
    MPI_Wait(&message, MPI_STATUS_IGNORE);
    MPI_Request_free(&send);
    MPI_Request_free(&receive);
    MPI_Psend_init(buffer, 2, 1, MPI_INT, MPI_PROC_NULL, 0, comm, MPI_INFO_NULL, &send);
    MPI_Start(&send);
    CHECK(MPI_Pready_range(0, 1, send) == MPI_SUCCESS && MPI_Wait(&send, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    MPI_Request_free(&send);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_free(&comm);
}

/* The buffer of one communicator is detached while a message through another one still waits for its receive. */
static void buffers_wait_for_their_own_messages(void) {
    enum { LONG = 1 << 20 };
    int other = rank ^ 1, length = 0, flag = 0;
    char *bytes = malloc(LONG), room[64], more[64], *found = NULL;
    MPI_Comm comm;
    MPI_Request request;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    CHECK(MPI_Comm_attach_buffer(comm, room, sizeof room) == MPI_SUCCESS);
    CHECK(class_of(MPI_Comm_attach_buffer(comm, more, sizeof more)) == MPI_ERR_BUFFER);
    MPI_Buffer_attach(more, sizeof more);
    if (other < size) {
        memset(bytes, rank, LONG);
        MPI_Bsend(bytes, LONG, MPI_BYTE, other, 1, MPI_COMM_WORLD);
        CHECK(MPI_Buffer_iflush(&request) == MPI_SUCCESS);
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag);
        MPI_Bsend(bytes, LONG, MPI_BYTE, other, 2, comm);
        MPI_Recv(bytes, LONG, MPI_BYTE, other, 2, comm, MPI_STATUS_IGNORE);
        CHECK(bytes[0] == other);
        CHECK(MPI_Comm_flush_buffer(comm) == MPI_SUCCESS);
        MPI_Recv(bytes, LONG, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS && request == MPI_REQUEST_NULL);
    }
    CHECK(MPI_Comm_detach_buffer(comm, &found, &length) == MPI_SUCCESS && found == room && length == sizeof room);
    CHECK(MPI_Buffer_detach(&found, &length) == MPI_SUCCESS && found == more && length == sizeof more);
    MPI_Comm_free(&comm);
    free(bytes);
}

static void sessions_have_buffers(void) {
    char room[16], *found = NULL;
    int length = 0;
    MPI_Session session;
    MPI_Request request;
    CHECK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session) == MPI_SUCCESS);
    CHECK(MPI_Session_attach_buffer(session, room, sizeof room) == MPI_SUCCESS);
    CHECK(MPI_Session_flush_buffer(session) == MPI_SUCCESS);
    CHECK(MPI_Session_iflush_buffer(session, &request) == MPI_SUCCESS);
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    CHECK(MPI_Session_detach_buffer(session, &found, &length) == MPI_SUCCESS && found == room);
    CHECK(MPI_Session_finalize(&session) == MPI_SUCCESS);
}

/* Requests whose completion is asked for stay as they are. */
static void statuses_leave_requests(void) {
    int in[2], flag, index, found, indices[2];
    MPI_Request requests[2];
    MPI_Status statuses[2];
    for (int at = 0; at < 2; at++) MPI_Irecv(&in[at], 1, MPI_INT, 0, at, MPI_COMM_SELF, &requests[at]);
    CHECK(MPI_Request_get_status_all(2, requests, &flag, statuses) == MPI_SUCCESS && !flag);
    CHECK(MPI_Request_get_status_any(2, requests, &index, &flag, statuses) == MPI_SUCCESS && !flag);
    MPI_Cancel(&requests[1]);
    CHECK(MPI_Request_get_status_any(2, requests, &index, &flag, statuses) == MPI_SUCCESS && flag && index == 1);
    CHECK(MPI_Request_get_status_some(2, requests, &found, indices, statuses) == MPI_SUCCESS);
    CHECK(found == 1 && indices[0] == 1);
    MPI_Cancel(&requests[0]);
    CHECK(MPI_Request_get_status_all(2, requests, &flag, statuses) == MPI_SUCCESS && flag);
    CHECK(requests[0] != MPI_REQUEST_NULL && requests[1] != MPI_REQUEST_NULL);
    MPI_Waitall(2, requests, statuses);
}

/* The same arguments give the same datatype, which knows them. */
static void fortran_datatypes_know_their_arguments(void) {
    int integers, addresses, types, combiner, arguments[2], bytes;
    MPI_Datatype first, second;
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    CHECK(MPI_Type_create_f90_real(15, 300, &first) == MPI_SUCCESS);
    CHECK(MPI_Type_create_f90_real(15, 300, &second) == MPI_SUCCESS && first == second);
    CHECK(MPI_Type_size(first, &bytes) == MPI_SUCCESS && bytes == 8);
    CHECK(MPI_Type_get_envelope(first, &integers, &addresses, &types, &combiner) == MPI_SUCCESS);
    CHECK(integers == 2 && addresses == 0 && types == 0 && combiner == MPI_COMBINER_F90_REAL);
    CHECK(MPI_Type_get_contents(first, 2, 0, 0, arguments, NULL, NULL) == MPI_SUCCESS);
    CHECK(arguments[0] == 15 && arguments[1] == 300);
    CHECK(class_of(MPI_Type_free(&second)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_create_f90_integer(100, &second)) == MPI_ERR_ARG);
    CHECK(MPI_Type_get_value_index(MPI_DOUBLE, MPI_INT, &second) == MPI_SUCCESS && second == MPI_DOUBLE_INT);
    CHECK(MPI_Type_get_value_index(MPI_INT, MPI_DOUBLE, &second) == MPI_SUCCESS && second == MPI_DATATYPE_NULL);
    double in = 1, out = 0;
    MPI_Allreduce(&in, &out, 1, first, MPI_SUM, MPI_COMM_WORLD);
    CHECK(out == size);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
}

static void tools_before_initialisation(void) {
    int provided, index;
    unsigned long value;
    MPI_T_cvar_handle handle;
    CHECK(MPI_T_cvar_get_num(&index) == MPI_T_ERR_NOT_INITIALIZED);
    CHECK(MPI_T_finalize() == MPI_T_ERR_NOT_INITIALIZED);
    CHECK(MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided) == MPI_SUCCESS && provided == MPI_THREAD_MULTIPLE);
    CHECK(MPI_T_cvar_get_index("dayfly_deadline_ms", &index) == MPI_SUCCESS);
    CHECK(MPI_T_cvar_handle_alloc(index, NULL, &handle, &provided) == MPI_SUCCESS && provided == 1);
    CHECK(MPI_T_cvar_read(handle, &value) == MPI_T_ERR_NOT_ACCESSIBLE);
    CHECK(MPI_T_cvar_handle_free(&handle) == MPI_SUCCESS && handle == MPI_T_CVAR_HANDLE_NULL);
}

static void control_variables(void) {
    int count, index, length = 4, verbosity, bind, scope;
    char name[64], text[256];
    unsigned long value, changed;
    MPI_Datatype datatype;
    MPI_T_enum values;
    MPI_T_cvar_handle handle;
    CHECK(MPI_T_cvar_get_num(&count) == MPI_SUCCESS && count == 3);
    for (int at = 0; at < count; at++) {
        int name_length = sizeof name, text_length = sizeof text;
        CHECK(MPI_T_cvar_get_info(at, name, &name_length, &verbosity, &datatype, &values, text, &text_length, &bind,
                                  &scope) == MPI_SUCCESS);
        CHECK(name_length == (int)strlen(name) + 1 && text_length == (int)strlen(text) + 1);
        CHECK(MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS && index == at);
        CHECK(bind == MPI_T_BIND_NO_OBJECT && values == MPI_T_ENUM_NULL);
    }
    CHECK(MPI_T_cvar_get_info(0, name, &length, NULL, NULL, NULL, NULL, NULL, NULL, NULL) == MPI_SUCCESS);
    CHECK(strcmp(name, "day") == 0 && length == (int)sizeof "dayfly_deadline_ms");
    CHECK(MPI_T_cvar_get_info(count, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) == MPI_T_ERR_INVALID_INDEX);
    CHECK(MPI_T_cvar_get_index("none", &index) == MPI_T_ERR_INVALID_NAME);
    MPI_T_cvar_get_index("dayfly_deadline_ms", &index);
    MPI_T_cvar_handle_alloc(index, NULL, &handle, &count);
    CHECK(MPI_T_cvar_read(handle, &value) == MPI_SUCCESS && value > 50);
    changed = 50;
    CHECK(MPI_T_cvar_write(handle, &changed) == MPI_SUCCESS);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    /* Nobody sends: the deadline that was written ends the wait. */
    CHECK(class_of(MPI_Recv(&count, 1, MPI_INT, 0, 99, MPI_COMM_SELF, MPI_STATUS_IGNORE)) == MPIX_ERR_TIMEOUT);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
    CHECK(MPI_T_cvar_write(handle, &value) == MPI_SUCCESS);
    MPI_T_cvar_handle_free(&handle);
    MPI_T_cvar_get_index("dayfly_unexpected_bytes", &index);
    MPI_T_cvar_handle_alloc(index, NULL, &handle, &count);
    CHECK(MPI_T_cvar_read(handle, &value) == MPI_SUCCESS && value > 0);
    CHECK(MPI_T_cvar_write(handle, &value) == MPI_T_ERR_CVAR_SET_NEVER);
    MPI_T_cvar_handle_free(&handle);
    CHECK(MPI_T_cvar_read(handle, &value) == MPI_T_ERR_INVALID_HANDLE);
}

static unsigned long read_of(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
    unsigned long value;
    CHECK(MPI_T_pvar_read(session, handle, &value) == MPI_SUCCESS);
    return value;
}

static void performance_variables(void) {
    int index, count, word = 1;
    unsigned long value;
    MPI_T_pvar_session session;
    MPI_T_pvar_handle sends, unexpected;
    MPI_Request request;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(MPI_T_pvar_get_num(&count) == MPI_SUCCESS && count == 7);
    CHECK(MPI_T_pvar_session_create(&session) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_get_index("dayfly_sends", MPI_T_PVAR_CLASS_LEVEL, &index) == MPI_T_ERR_INVALID_NAME);
    CHECK(MPI_T_pvar_get_index("dayfly_sends", MPI_T_PVAR_CLASS_COUNTER, &index) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_handle_alloc(session, index, NULL, &sends, &count) == MPI_SUCCESS && count == 1);
    CHECK(MPI_T_pvar_get_index("dayfly_unexpected_messages", MPI_T_PVAR_CLASS_LEVEL, &index) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_handle_alloc(session, index, NULL, &unexpected, &count) == MPI_SUCCESS);
    CHECK(read_of(session, sends) == 0);
    unsigned long before = read_of(session, unexpected);
    MPI_Isend(&word, 1, MPI_INT, 0, 5, MPI_COMM_SELF, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(read_of(session, sends) == 1 && read_of(session, unexpected) == before + 1);
    MPI_Recv(&word, 1, MPI_INT, 0, 5, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    CHECK(read_of(session, unexpected) == before);
    CHECK(MPI_T_pvar_readreset(session, sends, &value) == MPI_SUCCESS && value == 1 && read_of(session, sends) == 0);
    CHECK(MPI_T_pvar_start(session, sends) == MPI_T_ERR_PVAR_NO_STARTSTOP);
    CHECK(MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_reset(session, unexpected) == MPI_T_ERR_PVAR_NO_WRITE);
    CHECK(MPI_T_pvar_reset(session, MPI_T_PVAR_ALL_HANDLES) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_handle_free(session, &sends) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_read(session, sends, &value) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_pvar_session_free(&session) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_read(session, unexpected, &value) == MPI_T_ERR_INVALID_SESSION);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void categories_and_events(void) {
    int count, controls, numbers, categories, index, indices[8];
    CHECK(MPI_T_category_get_num(&count) == MPI_SUCCESS && count == 3);
    CHECK(MPI_T_category_get_index("dayfly_settings", &index) == MPI_SUCCESS);
    CHECK(MPI_T_category_get_info(index, NULL, NULL, NULL, NULL, &controls, &numbers, &categories) == MPI_SUCCESS);
    CHECK(controls == 3 && numbers == 0 && categories == 0);
    CHECK(MPI_T_category_get_cvars(index, 8, indices) == MPI_SUCCESS && indices[2] == 2);
    CHECK(MPI_T_category_get_info(9, NULL, NULL, NULL, NULL, NULL, NULL, NULL) == MPI_T_ERR_INVALID_INDEX);
    CHECK(MPI_T_event_get_num(&count) == MPI_SUCCESS && count == 0);
    CHECK(MPI_T_source_get_num(&count) == MPI_SUCCESS && count == 0);
    CHECK(MPI_T_event_get_index("none", &index) == MPI_T_ERR_INVALID_NAME);
    CHECK(MPI_T_finalize() == MPI_SUCCESS);
    CHECK(MPI_T_category_get_num(&count) == MPI_T_ERR_NOT_INITIALIZED);
}

int main(int argc, char **argv) {
    int provided;
    tools_before_initialisation();
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    threads_send_partitions(PARTS, 0);
    threads_send_partitions(5, 0);
    threads_send_partitions(100, 1);
    partitions_match_in_order();
    if (size > 1) partitions_move_in_other_waits();
    partitions_refuse_misuse();
    buffers_wait_for_their_own_messages();
    sessions_have_buffers();
    statuses_leave_requests();
    fortran_datatypes_know_their_arguments();
    control_variables();
    performance_variables();
    categories_and_events();
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d of %d is done\n", rank, size);
    return MPI_Finalize();
}
