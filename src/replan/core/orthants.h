/* Probabilities that two, three or four centred Gaussians of variance 1 are all positive, and
   E[O_a O_b c+ d+] of four different ones, where O is the step and c+ = max(c, 0).

   Two and three are sums of arcsines of the correlations rho (Sheppard 1899). Four have no closed
   form. Scale the correlations of one of them, d, with the others by t from 0 to 1; by Plackett's
   identity (1954) the probability changes by

     sum_i rho_id / (2 pi sqrt(1 - t^2 rho_id^2)) P2(rho_jk|id(t)),   i, j, k the others,

   and all but the arcsine in this P2 is integrated exactly:

     P4 = 1/16 + sum asin(rho) / (8 pi)
          + 1/(4 pi^2) sum_i int_0^1 rho_id asin(rho_jk|id(t)) / sqrt(1 - t^2 rho_id^2) dt.

   The integrand is analytic but for branch points on the real axis, |t| >= 1/R, where R is the
   multiple correlation of d with the others; so d is the one with the smallest R. With
   t = (1 - c^2)/R the nearest branch point is none in c: 6 Gauss-Legendre nodes give P4 to 1e-14 up
   to R = 0.4, 8 up to 0.7, and 16 to 1e-13 up to 0.98. Beyond, others may be close to c = 0, on the
   imaginary axis: 32 nodes in log c are far from all.

   The moments follow by Stein's identity; with s = sqrt(1 - rho^2),

     E[O_a O_b c+ d+]         = rho_cd P(a, b, c, d > 0) + sum_{i != d} rho_ci X_id
     X_id = E[D_i O_j O_k d+] = sum_{j != i} R_ij e_dj|i / (2 pi s_ij),
     e_dj|i                   = rho_dj - rho_di rho_ij,

   where D is the delta function, j and k are the other two, and R_ij is the probability that the
   two others than i and j are positive where i = j = 0. X_id is also the derivative of the moment
   by rho_id, and P(a, b, c, d > 0) that by rho_cd (Price's theorem): derivatives need no further
   integral.

   Units that are aligned divide by s near 0. What they divide is as small: numbers are brought back
   to the bounds that Cauchy and Schwarz give them, and what remains of rounding cancels. */

#ifndef ORTHANTS_H
#define ORTHANTS_H

#include "network.h"

#define OVER_TWO_PI 0.15915494309189533577
#define LEAST 1e-8      /* a sine that divides: units that are closer cannot be told apart */
#define NOTHING 1e-28   /* below what rounding leaves of a variance that is 0 given two others */
#define ROUNDING 1e-15  /* of a difference, relative to what is subtracted from */
#define FLAT 1e-12      /* below this, four units count as lying in a plane */
#define FAR 0.4         /* R up to which 6 nodes are enough, */
#define HALFWAY 0.7     /* 8, */
#define NEAR 0.98       /* and 16 */
#define SHALLOW 1e-6    /* c below which nothing is left to integrate: (1e-6)^2 */

/* Nodes and weights of Gauss and Legendre on [0, 1]. */
static const double NODES_6[6] = {
    0.03376524289842403, 0.16939530676686776, 0.38069040695840156, 0.61930959304159849,
    0.83060469323313224, 0.96623475710157591,
};
static const double WEIGHTS_6[6] = {
    0.085662246189585137, 0.18038078652406936, 0.23395696728634552, 0.23395696728634552,
    0.18038078652406936, 0.085662246189585137,
};
static const double NODES_8[8] = {
    0.019855071751231912, 0.10166676129318664, 0.2372337950418355, 0.40828267875217511,
    0.59171732124782483, 0.7627662049581645, 0.89833323870681336, 0.98014492824876809,
};
static const double WEIGHTS_8[8] = {
    0.050614268145188532, 0.11119051722668721, 0.15685332293894344, 0.18134189168918083,
    0.18134189168918083, 0.15685332293894344, 0.11119051722668721, 0.050614268145188532,
};
static const double NODES_16[16] = {
    0.0052995325041750307, 0.0277124884633837, 0.067184398806084122, 0.1222977958224985,
    0.19106187779867811, 0.27099161117138632, 0.35919822461037054, 0.45249374508118129,
    0.54750625491881877, 0.64080177538962946, 0.72900838882861363, 0.80893812220132189,
    0.87770220417750155, 0.93281560119391593, 0.9722875115366163, 0.99470046749582497,
};
static const double WEIGHTS_16[16] = {
    0.013576229705877088, 0.031126761969323728, 0.047579255841246303, 0.062314485627767036,
    0.074797994408288354, 0.084578259697501323, 0.09130170752246182, 0.09472530522753432,
    0.09472530522753432, 0.09130170752246182, 0.084578259697501323, 0.074797994408288354,
    0.062314485627767036, 0.047579255841246303, 0.031126761969323728, 0.013576229705877088,
};
static const double NODES_32[32] = {
    0.0013680690752592151, 0.0071942442273658092, 0.017618872206246805, 0.032546962031130167,
    0.051839422116973954, 0.075316193133715015, 0.10275810201602881, 0.13390894062985514,
    0.16847786653489238, 0.20614212137961885, 0.24655004553388532, 0.28932436193468236,
    0.33406569885893617, 0.38035631887393145, 0.42776401920860174, 0.47584616715613082,
    0.52415383284386918, 0.57223598079139826, 0.61964368112606849, 0.66593430114106389,
    0.71067563806531764, 0.75344995446611462, 0.79385787862038115, 0.83152213346510762,
    0.86609105937014486, 0.89724189798397114, 0.92468380686628504, 0.94816057788302599,
    0.96745303796886983, 0.98238112779375319, 0.99280575577263419, 0.99863193092474078,
};
static const double WEIGHTS_32[32] = {
    0.0035093050047352529, 0.0081371973654528716, 0.012696032654631012, 0.017136931456510882,
    0.021417949011113418, 0.025499029631188046, 0.029342046739267783, 0.032911111388180841,
    0.036172897054424169, 0.039096947893535114, 0.041655962113473353, 0.043826046502201892,
    0.04558693934788189, 0.046922199540402255, 0.047819360039637354, 0.04827004425736383,
    0.04827004425736383, 0.047819360039637354, 0.046922199540402255, 0.04558693934788189,
    0.043826046502201892, 0.041655962113473353, 0.039096947893535114, 0.036172897054424169,
    0.032911111388180841, 0.029342046739267783, 0.025499029631188046, 0.021417949011113418,
    0.017136931456510882, 0.012696032654631012, 0.0081371973654528716, 0.0035093050047352529,
};

/* Sets of four units, 0 to 3, side by side in lanes, so that loops are vectorised. Pairs have the
   places 01, 02, 03, 12, 13, 23 in this order: those of a pair and of the other two add up to 5. */
enum { LANES = 16, FOUR = 4, PAIRS = 6 };

static const int FIRST[PAIRS] = {0, 0, 0, 1, 1, 2}, SECOND[PAIRS] = {1, 2, 3, 2, 3, 3};
static const int PLACE[FOUR][FOUR] = {{-1, 0, 1, 2}, {0, -1, 3, 4}, {1, 3, -1, 5}, {2, 4, 5, -1}};

typedef double lanes[LANES];

typedef struct {
    int64_t units[FOUR][LANES];  /* for those who call, who also fill in */
    lanes rho[PAIRS];            /* correlations, */
    lanes sines[PAIRS];          /* s, */
    lanes inverses[PAIRS];       /* 1 / s */
    lanes angles;                /* and sum asin(rho) */
    lanes left[FOUR][PAIRS];     /* at i and a pair: its covariance given i */
    lanes minors[PAIRS];         /* of a pair: the covariance given the others, times their s^2 */
    lanes cofactors[FOUR];       /* of a unit: the determinant of the others' correlations */
    lanes sizes[PAIRS];          /* of a pair: what bounds the minor of the others */
    lanes partial[PAIRS];        /* of a pair: the correlation of the others where the two are 0 */
    lanes orthants[PAIRS];       /* R */
    lanes given[3][6];           /* for each i in the integral: rho_id and, given i, the covariances
                                    jk, jj, kk, jd and kd */
    lanes turned;                /* the smallest multiple correlation */
    lanes whole;                 /* P(a, b, c, d > 0) */
    lanes crossings[FOUR][FOUR]; /* X */
    lanes moments[PAIRS];        /* E[O_a O_b c+ d+] with the steps of each pair */
    lanes by_moments[PAIRS];     /* derivatives of some number by the moments, and */
    lanes by_rho[PAIRS];         /* those of the same number by the correlations */
} quadruples;

/* P(a, b > 0) from the arcsine of their correlation. */
static inline double two(double angle)
{
    return 0.25 + OVER_TWO_PI * angle;
}

/* P(a, b, c > 0) from the arcsines of their correlations. */
static inline double three(double angle_ab, double angle_ac, double angle_bc)
{
    return 0.125 + 0.5 * OVER_TWO_PI * (angle_ab + angle_ac + angle_bc);
}

/* Comparisons are such that what is not a number stays so. */
static inline double at_least(double least, double value)
{
    return value < least ? least : value;
}

/* A number brought back to [-bound, bound], which rounding may have left. */
static inline double bounded(double value, double bound)
{
    return value > bound ? bound : at_least(-bound, value);
}

static inline double sine_of(double rho)
{
    return sqrt(at_least(0.0, (1.0 - rho) * (1.0 + rho)));
}

/* sum_i rho_id asin(rho_jk|id(t)) / sqrt(1 - t^2 rho_id^2) */
static inline double integrands(double t, unsigned lane, const quadruples *q)
{
    double total = 0.0;
    const double square = t * t;
    for (int i = 0; i < 3; i++) {
        const double with_d = q->given[i][0][lane], jk = q->given[i][1][lane];
        const double jj = q->given[i][2][lane], kk = q->given[i][3][lane];
        const double jd = q->given[i][4][lane], kd = q->given[i][5][lane];
        const double left = at_least(1e-16, 1.0 - square * with_d * with_d);
        const double both = jk * left - square * jd * kd;
        const double one = at_least(NOTHING, jj * left - square * jd * jd);
        const double other = at_least(NOTHING, kk * left - square * kd * kd);
        const double size = sqrt(one * other), root = sqrt(left), inverse = 1.0 / (size * root);
        total += with_d * size * inverse * arcsine(bounded(both * root * inverse, 1.0));
    }
    return total;
}

/* Integrate in c from 1 to `end`, in the four lanes of one vector: c = 1 - (1 - end) v. */
static void integrate_vector(int nodes, const double *v, const double *weights, unsigned first,
                             quadruples *q)
{
    double end[4], scale[4], total[4] = {0.0, 0.0, 0.0, 0.0};
    for (unsigned i = 0; i < 4; i++) {
        end[i] = sqrt(1.0 - q->turned[first + i]);
        scale[i] = 1.0 / (1.0 + end[i]);
    }
    for (int node = 0; node < nodes; node++)
        for (unsigned i = 0; i < 4; i++) {
            const double c = 1.0 - (1.0 - end[i]) * v[node];
            const double t = v[node] * (1.0 + c) * scale[i];
            total[i] += weights[node] * c * integrands(t, first + i, q);
        }
    for (unsigned i = 0; i < 4; i++) q->whole[first + i] = 2.0 * scale[i] * total[i];
}

/* Integrate in log c = v log(end), the nodes side by side. */
static double integrate_in_logarithm(unsigned lane, const quadruples *q)
{
    const double R = q->turned[lane], depth = log(at_least(SHALLOW, sqrt(1.0 - R)));
    double squares[32], total = 0.0;
    for (int node = 0; node < 32; node++) squares[node] = exp(2.0 * depth * NODES_32[node]);
    for (int node = 0; node < 32; node++)
        total += WEIGHTS_32[node] * squares[node] * integrands((1.0 - squares[node]) / R, lane, q);
    return -total * 2.0 * depth / R;
}

static void integrate(unsigned vectors, quadruples *q)
{
    for (unsigned first = 0; first < 4 * vectors; first += 4) {
        double most = 0.0;
        for (unsigned i = 0; i < 4; i++) most = at_least(q->turned[first + i], most);
        if (most <= FAR)
            integrate_vector(6, NODES_6, WEIGHTS_6, first, q);
        else if (most <= HALFWAY)
            integrate_vector(8, NODES_8, WEIGHTS_8, first, q);
        else
            integrate_vector(16, NODES_16, WEIGHTS_16, first, q);
        for (unsigned lane = first; most > NEAR && lane < first + 4; lane++)
            if (q->turned[lane] > NEAR) q->whole[lane] = integrate_in_logarithm(lane, q);
    }
    EACH (lane, 4 * vectors)
        q->whole[lane] = 0.0625 + 0.25 * OVER_TWO_PI * q->angles[lane] +
                         OVER_TWO_PI * OVER_TWO_PI * q->whole[lane];
}

/* Fill in covariances given one unit, rounded once: of aligned units, little else is left. Then */
static void condition(unsigned vectors, quadruples *q)
{
    for (int jk = 0; jk < PAIRS; jk++)
        for (int other = 0; other < 2; other++) {
            const int i = other ? SECOND[5 - jk] : FIRST[5 - jk];
            const int ij = PLACE[i][FIRST[jk]], ik = PLACE[i][SECOND[jk]];
            EACH (lane, 4 * vectors)
                q->left[i][jk][lane] = fma(-q->rho[ij][lane], q->rho[ik][lane], q->rho[jk][lane]);
        }
}

/* those of pairs ab given the others, i and j, times their determinant. Each can be had by two
   ways; that with the smaller terms is the more accurate. And */
static void set_minors(unsigned vectors, quadruples *q)
{
    for (int ab = 0; ab < PAIRS; ab++) {
        const int ij = 5 - ab, a = FIRST[ab], b = SECOND[ab], i = FIRST[ij], j = SECOND[ij];
        const double *given_i = q->left[i][ab], *given_j = q->left[j][ab];
        const double *aj = q->left[i][PLACE[a][j]], *bj = q->left[i][PLACE[b][j]];
        const double *ai = q->left[j][PLACE[a][i]], *bi = q->left[j][PLACE[b][i]];
        EACH (lane, 4 * vectors) {
            const double by_i = aj[lane] * bj[lane], by_j = ai[lane] * bi[lane];
            const double square = q->sines[ij][lane] * q->sines[ij][lane];
            const double first = given_i[lane] * square - by_i;
            const double second = given_j[lane] * square - by_j;
            q->minors[ab][lane] = fabs(by_i) < fabs(by_j) ? first : second;
        }
    }
}

/* the determinants of three units' correlations, by the best of three ways. */
static void set_cofactors(unsigned vectors, quadruples *q)
{
    for (int d = 0; d < FOUR; d++) {
        const int i = (d + 1) % 4, j = (d + 2) % 4, k = (d + 3) % 4;
        const int ij = PLACE[i][j], ik = PLACE[i][k], jk = PLACE[j][k];
        EACH (lane, 4 * vectors) {
            const double s_ij = q->sines[ij][lane], s_ik = q->sines[ik][lane];
            const double s_jk = q->sines[jk][lane];
            const double by_i = s_ij * s_ik, by_j = s_ij * s_jk, by_k = s_ik * s_jk;
            double size = by_i, part = q->left[i][jk][lane];
            part = by_j < size ? q->left[j][ik][lane] : part, size = by_j < size ? by_j : size;
            part = by_k < size ? q->left[k][ij][lane] : part, size = by_k < size ? by_k : size;
            size *= size;
            q->cofactors[d][lane] =
                at_least(NOTHING, at_least(ROUNDING * size, size - part * part));
        }
    }
}

static void set_determinants(unsigned vectors, quadruples *q)
{
    condition(vectors, q);
    set_minors(vectors, q);
    set_cofactors(vectors, q);
}

/* Take four units that lie in a plane, as far as rounding can tell, out of it by a little. Only rho
   and s change, because what follows divides by them: the sum of the angles is exact. */
static int thicken(unsigned vectors, quadruples *q)
{
    int changed = 0;
    for (unsigned lane = 0; lane < 4 * vectors; lane++) {
        double most = 0.0;
        for (int d = 0; d < FOUR; d++) most = at_least(q->cofactors[d][lane], most);
        if (!(most < FLAT)) continue;
        changed = 1;
        for (int pair = 0; pair < PAIRS; pair++) {
            q->rho[pair][lane] *= 1.0 - FLAT;
            q->sines[pair][lane] = sine_of(q->rho[pair][lane]);
            q->inverses[pair][lane] = 1.0 / q->sines[pair][lane];
        }
    }
    return changed;
}

/* Fill in R, the probability that two are positive where the others are 0. */
static void set_orthants(unsigned vectors, quadruples *q)
{
    for (int pair = 0; pair < PAIRS; pair++) {
        const double *one = q->cofactors[FIRST[5 - pair]], *other = q->cofactors[SECOND[5 - pair]];
        EACH (lane, 4 * vectors) {
            const double size = sqrt(one[lane] * other[lane]);
            q->sizes[pair][lane] = size;
            q->partial[pair][lane] = bounded(q->minors[5 - pair][lane] / size, 1.0);
            q->orthants[pair][lane] = two(arcsine(q->partial[pair][lane]));
        }
    }
}

/* Choose d, the unit that turns least with the others, and list what its integral needs. */
static void place(unsigned vectors, quadruples *q)
{
    for (unsigned lane = 0; lane < 4 * vectors; lane++) {
        int d = 0;
        for (int other = 1; other < FOUR; other++)
            d = q->cofactors[other][lane] < q->cofactors[d][lane] ? other : d;
        double square = 0.0;
        for (int step = 0; step < 3; step++) {
            const int i = (d + step + 1) % 4, j = (d + (step + 1) % 3 + 1) % 4;
            const int k = (d + (step + 2) % 3 + 1) % 4;
            const int di = PLACE[d][i], ij = PLACE[i][j], ik = PLACE[i][k];
            lanes *given = q->given[step], *left = q->left[i];
            square += q->rho[di][lane] * q->minors[di][lane];
            given[0][lane] = q->rho[di][lane];
            given[1][lane] = left[PLACE[j][k]][lane];
            given[2][lane] = q->sines[ij][lane] * q->sines[ij][lane];
            given[3][lane] = q->sines[ik][lane] * q->sines[ik][lane];
            given[4][lane] = left[PLACE[j][d]][lane];
            given[5][lane] = left[PLACE[k][d]][lane];
        }
        q->turned[lane] = sqrt(bounded(at_least(0.0, square) / q->cofactors[d][lane], 1.0));
    }
}

/* Fill in X_id = E[D_i O_j O_k d+]. */
static void set_crossings(unsigned vectors, quadruples *q)
{
    for (int i = 0; i < FOUR; i++)
        for (int d = 0; d < FOUR; d++) {
            if (i == d) continue;
            const int id = PLACE[i][d], j = FIRST[5 - id], k = SECOND[5 - id];
            const int ij = PLACE[i][j], ik = PLACE[i][k], dj = PLACE[d][j], dk = PLACE[d][k];
            EACH (lane, 4 * vectors) {
                const double size = q->sines[id][lane];
                const double by_j = bounded(q->left[i][dj][lane] * q->inverses[ij][lane], size);
                const double by_k = bounded(q->left[i][dk][lane] * q->inverses[ik][lane], size);
                q->crossings[i][d][lane] =
                    OVER_TWO_PI * (q->orthants[ij][lane] * by_j + q->orthants[ik][lane] * by_k +
                                   q->orthants[id][lane] * size);
            }
        }
}

/* Fill in the moments. */
static void set_quadruples(unsigned vectors, quadruples *q)
{
    set_determinants(vectors, q);
    if (thicken(vectors, q)) set_determinants(vectors, q);
    set_orthants(vectors, q);
    place(vectors, q);
    integrate(vectors, q);
    set_crossings(vectors, q);
    for (int ab = 0; ab < PAIRS; ab++) {
        const int a = FIRST[ab], b = SECOND[ab], c = FIRST[5 - ab], d = SECOND[5 - ab];
        const int ac = PLACE[a][c], bc = PLACE[b][c];
        EACH (lane, 4 * vectors)
            q->moments[ab][lane] = q->rho[5 - ab][lane] * q->whole[lane] +
                                   q->crossings[c][d][lane] +
                                   q->rho[ac][lane] * q->crossings[a][d][lane] +
                                   q->rho[bc][lane] * q->crossings[b][d][lane];
    }
}

/* After that, pull derivatives by moments back to the correlations. That of E[O_a O_b c+ d+] by
   rho_ab is E[D_a D_b c+ d+]. */
static void pull_quadruples(unsigned vectors, quadruples *q)
{
    for (int ab = 0; ab < PAIRS; ab++) {
        const int a = FIRST[ab], b = SECOND[ab], c = FIRST[5 - ab], d = SECOND[5 - ab];
        const double *ac = q->by_moments[PLACE[a][c]], *ad = q->by_moments[PLACE[a][d]];
        const double *bc = q->by_moments[PLACE[b][c]], *bd = q->by_moments[PLACE[b][d]];
        EACH (lane, 4 * vectors) {
            const double partial = q->partial[ab][lane], inverse = q->inverses[ab][lane];
            const double lengths = bounded(q->sizes[ab][lane] * inverse * inverse, 1.0);
            const double value = OVER_TWO_PI * sine_of(partial) + partial * q->orthants[ab][lane];
            const double meeting = OVER_TWO_PI * lengths * inverse * value;
            q->by_rho[ab][lane] =
                meeting * q->by_moments[ab][lane] + q->whole[lane] * q->by_moments[5 - ab][lane] +
                q->crossings[a][d][lane] * ac[lane] + q->crossings[a][c][lane] * ad[lane] +
                q->crossings[b][d][lane] * bc[lane] + q->crossings[b][c][lane] * bd[lane];
        }
    }
}

#endif
