/* An MPI program that starts itself: three processes of two programs, which start one process each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpich.h"

static int failures = 0;

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            failures++;                                                     \
        }                                                                   \
    } while (0)

static int number_of(int key) {
    int *value = NULL, flag = 0;
    CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, key, &value, &flag) == MPI_SUCCESS && flag);
    return *value;
}

/* Adds the ranks of both sides, over the merged communicator. */
static void add_all(MPI_Comm between, int high, int total) {
    MPI_Comm both;
    int sum = 0, one = 1, size;
    CHECK(MPI_Intercomm_merge(between, high, &both) == MPI_SUCCESS);
    MPI_Comm_size(both, &size);
    CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, both) == MPI_SUCCESS);
    CHECK(sum == total && size == total);
    CHECK(MPI_Comm_disconnect(&both) == MPI_SUCCESS && both == MPI_COMM_NULL);
}

/* Exchanges a message that is too long to be sent ahead with each rank on the other side. */
static void exchange(MPI_Comm between, int others) {
    enum { LENGTH = 1 << 18 };
    int *sent = malloc(LENGTH * sizeof(int)), *received = malloc(LENGTH * sizeof(int));
    int rank, length;
    MPI_Comm_rank(between, &rank);
    for (int at = 0; at < LENGTH; at++) sent[at] = rank + at;
    for (int other = 0; other < others; other++) {
        MPI_Request requests[2];
        MPI_Status statuses[2];
        CHECK(MPI_Irecv(received, LENGTH, MPI_INT, other, 7, between, &requests[0]) == MPI_SUCCESS);
        CHECK(MPI_Isend(sent, LENGTH, MPI_INT, other, 7, between, &requests[1]) == MPI_SUCCESS);
        CHECK(MPI_Waitall(2, requests, statuses) == MPI_SUCCESS);
        MPI_Get_count(&statuses[0], MPI_INT, &length);
        CHECK(length == LENGTH && statuses[0].MPI_SOURCE == other && received[LENGTH - 1] == other + LENGTH - 1);
    }
    free(sent);
    free(received);
}

static void be_parent(char *program, int size) {
    char *first[] = {"child", "one", NULL}, *second[] = {"child", "two", NULL};
    char *programs[] = {program, program}, **arguments[] = {first, second};
    int counts[] = {2, 1}, codes[3] = {-1, -1, -1}, others, world_size;
    MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
    MPI_Comm between;
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    CHECK(number_of(MPI_UNIVERSE_SIZE) >= world_size);
    CHECK(MPI_Comm_spawn_multiple(2, programs, arguments, counts, infos, size - 1, MPI_COMM_WORLD, &between, codes) ==
          MPI_SUCCESS);
    CHECK(codes[0] == MPI_SUCCESS && codes[1] == MPI_SUCCESS && codes[2] == MPI_SUCCESS);
    MPI_Comm_remote_size(between, &others);
    CHECK(others == 3);
    exchange(between, others);
    add_all(between, 0, size + 3);
    CHECK(MPI_Comm_disconnect(&between) == MPI_SUCCESS && between == MPI_COMM_NULL);
}

static void be_child(MPI_Comm parent, char **arguments) {
    char *more[] = {"grandchild", NULL};
    int rank, size, parents, number = number_of(MPI_APPNUM), code = -1;
    MPI_Comm below;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_remote_size(parent, &parents);
    CHECK(size == 3 && number == (rank == 2));
    CHECK(strcmp(arguments[2], number ? "two" : "one") == 0 && arguments[3] == NULL);
    exchange(parent, parents);
    /* Each child starts one process of its own while it is connected to its parents. */
    CHECK(MPI_Comm_spawn(arguments[0], more, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &below, &code) == MPI_SUCCESS);
    CHECK(code == MPI_SUCCESS);
    exchange(below, 1);
    CHECK(MPI_Comm_disconnect(&below) == MPI_SUCCESS);
    add_all(parent, 1, parents + 3);
    CHECK(MPI_Comm_disconnect(&parent) == MPI_SUCCESS);
    CHECK(MPI_Comm_get_parent(&parent) == MPI_SUCCESS && parent == MPI_COMM_NULL);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Comm parent;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(MPI_Comm_get_parent(&parent) == MPI_SUCCESS);
    CHECK((parent == MPI_COMM_NULL) == (argc == 1));
    if (argc == 1) {
        be_parent(argv[0], size);
    } else if (strcmp(argv[1], "child") == 0) {
        be_child(parent, argv);
    } else {
        exchange(parent, 1);
        CHECK(MPI_Comm_disconnect(&parent) == MPI_SUCCESS);
    }
    MPI_Finalize();
    if (failures == 0) printf("%s is done\n", argc == 1 ? "parent" : argv[1]);
    return failures != 0;
}
