/* What blocks that wait for each other need of a device, on one CPU thread. Part of
 * cellgen_persist_device.cuh.
 *
 * Stores that others wait for arrive some time later, in random order, each piece whole; an mbarrier
 * counts the bytes that arrive. A barrier that is armed twice, a store beyond the shared memory, one to
 * an mbarrier that nobody made and a wait that does not end each end the process with a message. */
#ifndef CELLGEN_PERSIST_EMULATION_H
#define CELLGEN_PERSIST_EMULATION_H

inline uint4 cellgen_read_piece(const void *from)
{
    uint4 piece;
    memcpy(&piece, from, sizeof piece);
    return piece;
}

inline void cellgen_send_piece(void *to, uint4 piece)
{
    cellgen_emulator::one().send([=]() { memcpy(to, &piece, sizeof piece); });
}

inline void cellgen_look_again(uint32_t *looks)
{
    ++*looks;
    cellgen_emulator::one().pause();
}

inline void cellgen_prefetch(const void *) {}

/* ------------------------------------------------------------------------------- of a cluster */

struct cellgen_emulated_mbarrier {
    int phase = 0, armed = 0;
    int64_t missing = 0;

    void settle()
    {
        if (armed && missing == 0) armed = 0, phase ^= 1, cellgen_emulator::one().wake();
    }
};

/* Those of a launch, by block and address. */
inline std::map<std::pair<unsigned, uint32_t>, cellgen_emulated_mbarrier> &cellgen_mbarriers()
{
    static std::map<std::pair<unsigned, uint32_t>, cellgen_emulated_mbarrier> *const all =
        new std::map<std::pair<unsigned, uint32_t>, cellgen_emulated_mbarrier>;
    return *all;
}

inline uint32_t cellgen_shared_address(const void *at)
{
    cellgen_emulator &machine = cellgen_emulator::one();
    return (uint32_t)((const unsigned char *)at - machine.granted_to(machine.block_here()));
}

inline unsigned cellgen_cluster_rank() { return cellgen_emulator::one().block_here(); }

inline void cellgen_make_mbarrier(uint32_t at)
{
    cellgen_mbarriers()[{cellgen_cluster_rank(), at}] = cellgen_emulated_mbarrier();
}

inline void cellgen_arm(uint32_t at, uint32_t bytes)
{
    cellgen_emulated_mbarrier &own = cellgen_mbarriers().at({cellgen_cluster_rank(), at});
    if (own.armed) cellgen_emulator::fail("an mbarrier is armed twice", 0);
    own.armed = 1, own.missing += bytes;
    own.settle();
}

inline void cellgen_wait_for(uint32_t at, int phase)
{
    cellgen_emulated_mbarrier &own = cellgen_mbarriers().at({cellgen_cluster_rank(), at});
    while (own.phase == phase) cellgen_emulator::one().pause();
}

inline void cellgen_send_to(unsigned rank, uint32_t to, uint32_t barrier, uint4 piece)
{
    cellgen_emulator &machine = cellgen_emulator::one();
    if (to % 16 || to + 16 > machine.granted_bytes())
        cellgen_emulator::fail("a store beyond the shared memory of another block", 0);
    unsigned char *const place = machine.granted_to(rank) + to;
    const auto own = cellgen_mbarriers().find({rank, barrier});
    if (own == cellgen_mbarriers().end())
        cellgen_emulator::fail("a store for an mbarrier that is not there yet", 0);
    cellgen_emulated_mbarrier *const counts = &own->second;
    machine.send([=]() {
        memcpy(place, &piece, sizeof piece);
        counts->missing -= (int64_t)sizeof piece;
        counts->settle();
    });
}

/* All threads of all blocks that are there together. */
#define cellgen_cluster_barrier() cellgen_emulator::one().barrier_together()

#endif /* CELLGEN_PERSIST_EMULATION_H */
