/* The functions of cellgen_team.h where there are no threads: every team is the caller alone. */
#ifndef CELLGEN_ALONE_H
#define CELLGEN_ALONE_H

#include <stdint.h>

#include "cellgen_compiler.h"

#define CELLGEN_TEAM_ALWAYS 0x10000 /* as in cellgen_team.h; means nothing here */
#define CELLGEN_TEAM_PARTS 4

typedef void (*cellgen_team_task)(int thread, int threads, void *context);
typedef struct cellgen_team cellgen_team; /* of which there is none */

CELLGEN_STATIC cellgen_team *cellgen_team_create(int threads)
{
    (void)threads;
    return 0;
}
CELLGEN_STATIC void cellgen_team_destroy(cellgen_team *team)
{
    (void)team;
}
CELLGEN_STATIC int cellgen_team_size(const cellgen_team *team)
{
    (void)team;
    return 1;
}
CELLGEN_STATIC cellgen_team *cellgen_team_worth(cellgen_team *team)
{
    (void)team;
    return 0;
}
CELLGEN_STATIC cellgen_team *cellgen_team_part(cellgen_team *team, int part, int threads)
{
    (void)team, (void)part, (void)threads;
    return 0;
}
CELLGEN_STATIC void cellgen_team_barrier(cellgen_team *team, int thread)
{
    (void)team, (void)thread;
}
CELLGEN_STATIC void cellgen_team_run(cellgen_team *team, cellgen_team_task task, void *context)
{
    (void)team;
    task(0, 1, context);
}

#endif
