/* What `dayfly bench comm` measures, under MPI: openmpi OP BLOCKS MOST MS SIZE... prints, for each size, the microseconds of
 * one operation in the fastest of BLOCKS blocks of up to MOST operations, which take up to MS milliseconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *op = argv[1];
    int blocks = atoi(argv[2]);
    long most = atol(argv[3]);
    double limit = atof(argv[4]) / 1e3;
    long largest = 0;
    for (int i = 5; i < argc; i++) {
        largest = atol(argv[i]) > largest ? atol(argv[i]) : largest;
    }
    int wide = !strcmp(op, "alltoall") || !strcmp(op, "allgather") ? ranks : 1;
    char *send = malloc((size_t)largest * wide + 64), *receive = malloc((size_t)largest * wide + 64);
    memset(send, 1, (size_t)largest * wide + 64);
    memset(receive, 0, (size_t)largest * wide + 64);
    for (int i = 5; i < argc; i++) {
        int bytes = atoi(argv[i]);
        long count = (16L << 20) / (bytes + 1);
        count = count > most ? most : count < 2 ? 2 : count;
        double best = 1e30;
        /* The first block finds the count for the limit, and the second warms up. */
        for (int block = -2; block < blocks; block++) {
            long now = block == -2 ? 1 + count / 64 : block == -1 ? 1 + count / 8 : count;
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            for (long n = 0; n < now; n++) {
                if (!strcmp(op, "pingpong")) {
                    if (rank == 0) {
                        MPI_Send(send, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
                        MPI_Recv(receive, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    } else if (rank == 1) {
                        MPI_Recv(receive, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                        MPI_Send(send, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
                    }
                } else if (!strcmp(op, "bcast")) {
                    MPI_Bcast(send, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
                } else if (!strcmp(op, "allreduce")) {
                    MPI_Allreduce(send, receive, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
                } else if (!strcmp(op, "allgather")) {
                    MPI_Allgather(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, MPI_COMM_WORLD);
                } else if (!strcmp(op, "alltoall")) {
                    MPI_Alltoall(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, MPI_COMM_WORLD);
                } else {
                    MPI_Barrier(MPI_COMM_WORLD);
                }
            }
            MPI_Barrier(MPI_COMM_WORLD);
            double took = (MPI_Wtime() - start) / now;
            if (block == -2) {
                long fit = (long)(limit / took);
                count = fit < 2 ? 2 : fit < count ? fit : count;
                MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
            }
            best = block >= 0 && took * 1e6 < best ? took * 1e6 : best;
        }
        if (rank == 0) {
            printf("%d %.4f\n", bytes, best);
        }
    }
    MPI_Finalize();
    return 0;
}
