/* Functions of bindings/cxx/tests/mpi.cpp, in the plain form: doubles in, their squares out. */
#include <dayfly_function.h>

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

DFLY_EXPORT uint32_t square(void *in, uint32_t size, void *out) {
    const double *x = in;
    double *y = out;
    for (uint32_t i = 0; i < size / sizeof *x; i++) {
        y[i] = x[i] * x[i];
    }
    return size;
}

/* Kills the node of this worker, and waits to be ended with it. */
static void kill_node(void) {
    char path[64];
    int node = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", getppid());
    /* The node starts an executor, which forks workers. */
    FILE *executor = fopen(path, "r");
    if (executor != NULL && fscanf(executor, "%*d (%*[^)]) %*c %d", &node) == 1 && node > 1) {
        kill(node, SIGKILL);
    }
    if (executor != NULL) {
        fclose(executor);
    }
    sleep(60);
}

DFLY_EXPORT uint32_t square_or_kill_node(void *in, uint32_t size, void *out) {
    if (*(const double *)in < 0) {
        kill_node();
    }
    return square(in, size, out);
}
