/* What board.h promises, on this machine, where no device is emulated. */
#include "board.h"

#include <stdio.h>

void board_say(const char *text)
{
    fputs(text, stdout);
}

void board_say_number(const char *name, uint32_t number)
{
    printf("%s %lu\n", name, (unsigned long)number);
}
