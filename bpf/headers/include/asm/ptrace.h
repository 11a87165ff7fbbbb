/* Empty: a packet program gets no registers of a CPU. */
