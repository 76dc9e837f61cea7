/* Where memory is, in terms that two processes share: the file that is mapped there, and the position in it. */
#ifndef PLACE_H
#define PLACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct place {
    uint64_t inode;
    uint64_t position;
};

/* Returns the place of an address. The inode is 0 if no file is mapped there. */
static inline struct place place_of(const void *address) {
    const uint64_t wanted = (uint64_t)(uintptr_t)address;
    struct place found = {0, 0};
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long long start, end, offset, inode;
        if (sscanf(line, "%llx-%llx %*4s %llx %*s %llu", &start, &end, &offset, &inode) == 4 && start <= wanted &&
            wanted < end) {
            found.inode = inode;
            found.position = offset + (wanted - start);
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return found;
}

static inline bool is_same_place(struct place a, struct place b) {
    return a.inode != 0 && a.inode == b.inode && a.position == b.position;
}

#endif
