// SPDX-License-Identifier: Apache-2.0
// EACH_ELEMENT(M) writes M(v00) M(v01) … once for each value of a packet, for headers, registers and actions alike.

#define EACH_OF_16(M, h) M(h##0) M(h##1) M(h##2) M(h##3) M(h##4) M(h##5) M(h##6) M(h##7) \
                         M(h##8) M(h##9) M(h##a) M(h##b) M(h##c) M(h##d) M(h##e) M(h##f)
#define EACH_OF_64(M, a, b, c, d) EACH_OF_16(M, v##a) EACH_OF_16(M, v##b) EACH_OF_16(M, v##c) EACH_OF_16(M, v##d)

#if ELEMENTS == 64
#define EACH_ELEMENT(M) EACH_OF_64(M, 0, 1, 2, 3)
#define SIZE_CODE 1
#elif ELEMENTS == 256
#define EACH_ELEMENT(M) EACH_OF_64(M, 0, 1, 2, 3) EACH_OF_64(M, 4, 5, 6, 7) \
                        EACH_OF_64(M, 8, 9, a, b) EACH_OF_64(M, c, d, e, f)
#define SIZE_CODE 3
#else
#error "ELEMENTS must be 64 or 256"
#endif

#define ELEMENT_FIELD(v) bit<32> v;
