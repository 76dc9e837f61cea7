// A C++ program for the standard's binary interface.
#include <cstdio>
#include <mpi.h>
#include <vector>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<int> all(size);
    MPI_Allgather(&rank, 1, MPI_INT, all.data(), 1, MPI_INT, MPI_COMM_WORLD);
    for (int at = 0; at < size; at++)
        if (all[at] != at) MPI_Abort(MPI_COMM_WORLD, 1);
    std::printf("rank %d of %d is done\n", rank, size);
    return MPI_Finalize();
}
