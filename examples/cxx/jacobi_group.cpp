/* Solves the Laplace equation on a rectangle with Jacobi's method on the ranks of a group. Each rank has a block of
 * rows, and exchanges its edge rows with its neighbours before every sweep.
 *
 *     c++ -std=c++17 -O3 -I bindings/c/include -I bindings/cxx/include -o jacobi_group examples/cxx/jacobi_group.cpp \
 *         -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly -pthread
 *     dayfly up &
 *     dayfly run --ranks 4 ./jacobi_group            # or: ./jacobi_group ROWS COLUMNS TOLERANCE
 *
 * LIB is the directory that `make build` prints. Rank 0 also solves the equation alone; the exit status is 1 if the
 * results differ. */
#include <algorithm>
#include <cmath>
#include <iostream>
#include <dayfly/dayfly.hpp>
#include <string>
#include <vector>

// Rows of a grid, with a halo row above and below (of a neighbour or the boundary), and a boundary column at each side.
struct block {
    std::size_t rows, columns;
    std::vector<double> now, next;

    // Sets all cells to 0, and the grid's upper boundary to half a sine wave if this block has it (`top`).
    block(std::size_t height, std::size_t width, bool top)
        : rows(height), columns(width), now((height + 2) * (width + 2)) {
        const double pi = std::acos(-1.0);
        for (std::size_t x = 0; top && x < width + 2; x++) {
            now[x] = std::sin(pi * static_cast<double>(x) / static_cast<double>(width + 1));
        }
        next = now;
    }

    // Returns row `y` of the block, counted from 1, without the boundary columns.
    dayfly::span<double> row(std::size_t y) { return {&now[y * (columns + 2) + 1], columns}; }

    // Replaces each cell by the mean of its neighbours. Returns the largest change of a cell.
    double sweep() {
        const std::size_t width = columns + 2;
        double change = 0;
        for (std::size_t y = 1; y <= rows; y++) {
            for (std::size_t at = y * width + 1; at <= y * width + columns; at++) {
                next[at] = 0.25 * (now[at - 1] + now[at + 1] + now[at - width] + now[at + width]);
                change = std::max(change, std::abs(next[at] - now[at]));
            }
        }
        std::swap(now, next);
        return change;
    }

    std::vector<double> cells() {
        std::vector<double> inner;
        for (std::size_t y = 1; y <= rows; y++) {
            inner.insert(inner.end(), row(y).begin(), row(y).end());
        }
        return inner;
    }
};

int main(int argc, char **argv) try {
    const std::size_t rows = argc > 1 ? std::stoul(argv[1]) : 96, columns = argc > 2 ? std::stoul(argv[2]) : 128;
    const double tolerance = argc > 3 ? std::stod(argv[3]) : 1e-4;
    const dayfly::group group; // of `dayfly run`, else of this process alone
    const std::uint32_t rank = group.rank(), size = group.size();
    if (rows < size || columns < 1) {
        throw dayfly::error(DFLY_INVALID_REQUEST, "give each rank a row at least: jacobi_group ROWS COLUMNS TOLERANCE");
    }

    const auto first_row = [&](std::uint32_t of) { return rows * of / size; };
    block own(first_row(rank + 1) - first_row(rank), columns, rank == 0);
    const std::uint32_t above = rank > 0 ? rank - 1 : dayfly::no_rank;
    const std::uint32_t below = rank + 1 < size ? rank + 1 : dayfly::no_rank;
    std::size_t sweeps = 0;
    double residual = 0;
    do {
        group.sendrecv(own.row(1), above, 0, own.row(own.rows + 1), below, 0);
        group.sendrecv(own.row(own.rows), below, 1, own.row(0), above, 1);
        residual = group.allreduce(own.sweep(), dayfly::operation::max);
        sweeps++;
    } while (residual > tolerance);

    std::vector<std::size_t> counts;
    for (std::uint32_t of = 0; of < size; of++) {
        counts.push_back((first_row(of + 1) - first_row(of)) * columns);
    }
    std::vector<double> together(rank == 0 ? rows * columns : 0);
    group.gatherv(own.cells(), together, counts, 0);
    int differs = 0;
    if (rank == 0) {
        block alone(rows, columns, true);
        std::size_t alone_sweeps = 1;
        while (alone.sweep() > tolerance) {
            alone_sweeps++;
        }
        const std::vector<double> sequential = alone.cells();
        double difference = 0;
        for (std::size_t at = 0; at < sequential.size(); at++) {
            difference = std::max(difference, std::abs(together[at] - sequential[at]));
        }
        differs = difference > 1e-12 || sweeps != alone_sweeps;
        std::cout << rows << " x " << columns << " cells on " << size << " ranks: " << sweeps << " sweeps, "
                  << (differs ? "which differs from" : "the same as") << " one rank alone" << std::endl;
    }
    group.bcast(differs);
    return differs;
} catch (const dayfly::error &error) {
    std::cerr << error.what() << " [" << error.name() << "] " << error.remedy() << '\n';
    return 1;
}
