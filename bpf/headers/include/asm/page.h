/* bcc includes it for the size of a ring buffer. */
#pragma once
#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
