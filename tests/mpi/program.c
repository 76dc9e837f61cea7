/* A C program for any MPI with MPICH's binary interface: messages, modes, datatypes, errors and threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_MPICH_HEADER
#include <mpi.h>
#else
#include "mpich.h"
#endif

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);      \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static int rank, size;

/* Each rank sends around a ring, the derived datatype at one end only. */
static void ring(void) {
    double matrix[8][8], column[8];
    MPI_Datatype vector;
    MPI_Status status;
    MPI_Request request;
    int count;
    for (int i = 0; i < 64; i++) matrix[i / 8][i % 8] = rank * 100 + i;
    CHECK(MPI_Type_vector(8, 1, 8, MPI_DOUBLE, &vector) == MPI_SUCCESS);
    CHECK(MPI_Type_commit(&vector) == MPI_SUCCESS);
    CHECK(MPI_Irecv(column, 8, MPI_DOUBLE, (rank + size - 1) % size, 5, MPI_COMM_WORLD, &request) == MPI_SUCCESS);
    CHECK(MPI_Send(&matrix[0][3], 1, vector, (rank + 1) % size, 5, MPI_COMM_WORLD) == MPI_SUCCESS);
    CHECK(MPI_Wait(&request, &status) == MPI_SUCCESS);
    CHECK(status.MPI_SOURCE == (rank + size - 1) % size && status.MPI_TAG == 5);
    CHECK(MPI_Get_count(&status, MPI_DOUBLE, &count) == MPI_SUCCESS && count == 8);
    for (int i = 0; i < 8; i++) CHECK(column[i] == (rank + size - 1) % size * 100 + 8 * i + 3);
    CHECK(MPI_Type_free(&vector) == MPI_SUCCESS);
}

/* Exchanges that hang where a send blocks that MPI says does not. */
static void no_hang(void) {
    enum { LONG = 64 << 10, HUGE_BYTES = 64 << 20 };
    int other = rank ^ 1, length = 1 << 20;
    if (other < size) {
        char *out = malloc(LONG), *in = malloc(LONG), *huge = calloc(1, HUGE_BYTES), *room = malloc(1 << 20);
        MPI_Request requests[2];
        memset(out, rank, LONG);
        MPI_Irecv(in, LONG, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[0]);
        MPI_Send(out, LONG, MPI_BYTE, other, 1, MPI_COMM_WORLD);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        CHECK(in[LONG - 1] == other);
        MPI_Isend(out, LONG, MPI_BYTE, other, 2, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(in, LONG, MPI_BYTE, other, 2, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Buffer_attach(room, length);
        MPI_Bsend(huge, HUGE_BYTES, MPI_BYTE, other, 3, MPI_COMM_WORLD);
        MPI_Recv(huge, HUGE_BYTES, MPI_BYTE, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Buffer_detach(&room, &length);
        free(out), free(in), free(huge), free(room);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Sparse exchange: synchronous sends, then a barrier in the background while messages are received. */
static void sparse(void) {
    for (int round = 0; round < 50; round++) {
        int sent[64][2], tag = 10 + round % 2, count = 0, due = 0, seen = 0, in_barrier = 0, over = 0;
        MPI_Request requests[64], barrier;
        for (int to = 0; to < size; to++)
            if ((round + rank + to) % 3) {
                sent[count][0] = round, sent[count][1] = rank;
                MPI_Issend(sent[count], 2, MPI_INT, to, tag, MPI_COMM_WORLD, &requests[count]);
                count++;
            }
        for (int from = 0; from < size; from++) due += (round + from + rank) % 3 != 0;
        while (!over) {
            MPI_Status status;
            int flag, complete = 1, word[2];
            MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, &status);
            if (flag) {
                MPI_Recv(word, 2, MPI_INT, status.MPI_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                CHECK(word[0] == round && word[1] == status.MPI_SOURCE);
                seen++;
            }
            if (in_barrier) {
                MPI_Test(&barrier, &over, MPI_STATUS_IGNORE);
                continue;
            }
            for (int at = 0; at < count; at++) {
                MPI_Test(&requests[at], &flag, MPI_STATUS_IGNORE);
                complete = complete && flag;
            }
            if (complete) {
                MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
                in_barrier = 1;
            }
        }
        CHECK(seen == due);
    }
}

static void errors(void) {
    char text[MPI_MAX_ERROR_STRING];
    int code, class, length, big[4] = {0}, small;
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    code = MPI_Send(big, 1, MPI_INT, size, 0, comm);
    MPI_Error_class(code, &class);
    CHECK(class == MPI_ERR_RANK);
    MPI_Error_string(code, text, &length);
    CHECK(strstr(text, "there is no rank") != NULL);
    MPI_Request request;
    MPI_Isend(big, 4, MPI_INT, rank, 0, comm, &request);
    code = MPI_Recv(&small, 1, MPI_INT, rank, 0, comm, MPI_STATUS_IGNORE);
    MPI_Error_class(code, &class);
    CHECK(class == MPI_ERR_TRUNCATE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&comm);
}

enum { MESSAGES = 200, THREADS = 4 };

/* Receives a quarter of the messages of the rank before. */
static void *receive(void *sum) {
    for (int i = 0; i < MESSAGES / THREADS; i++) {
        MPI_Status status;
        int values[50], count;
        MPI_Recv(values, 50, MPI_INT, (rank + size - 1) % size, 20, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_INT, &count);
        for (int at = 0; at < count; at++) CHECK(values[at] == values[0]);
        *(long *)sum += values[0];
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    long sums[THREADS] = {0}, sum = 0;
    int values[50];
    for (int i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, receive, &sums[i]);
    for (int i = 0; i < MESSAGES; i++) {
        for (int at = 0; at < 50; at++) values[at] = i;
        MPI_Send(values, 1 + i % 50, MPI_INT, (rank + 1) % size, 20, MPI_COMM_WORLD);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL), sum += sums[i];
    CHECK(sum == MESSAGES * (MESSAGES - 1) / 2);
}

int main(int argc, char **argv) {
    int provided, sum, half_size;
    MPI_Comm half;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    sum = rank;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == size * (size - 1) / 2);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_size(half, &half_size);
    CHECK(half_size == (size + 1 - rank % 2) / 2);
    MPI_Comm_free(&half);
    ring();
    no_hang();
    sparse();
    errors();
    threads();
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d of %d is done\n", rank, size);
    return MPI_Finalize();
}
