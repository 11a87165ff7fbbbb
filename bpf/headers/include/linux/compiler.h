/* bcc includes it; packet programs need nothing of it. */
