/* bcc includes it for the size of a ring buffer. */
#ifndef PROBEDECK_ASM_PAGE_H
#define PROBEDECK_ASM_PAGE_H
#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#endif
