"use strict";
// Student's t, for the paired test of the page; the tests hold it against the numbers of scipy.
const Statistics = (() => {
  function logGamma(x) {
    const c = [76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155, 0.1208650973866179e-2, -0.5395239384953e-5];
    let y = x, sum = 1.000000000190015;
    const t = x + 5.5 - (x + 0.5) * Math.log(x + 5.5);
    for (const each of c) sum += each / ++y;
    return -t + Math.log(2.5066282746310005 * sum / x);
  }
  // the regularised incomplete beta function, by its continued fraction
  function beta(x, a, b) {
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(1 - x));
    if (x > (a + 1) / (a + b + 2)) return 1 - beta(1 - x, b, a);
    const tiny = 1e-300;
    let c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (Math.abs(d) < tiny ? tiny : d);
    let found = d;
    for (let m = 1; m < 300; m++) {
      for (const factor of [m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))]) {
        d = 1 + factor * d; d = 1 / (Math.abs(d) < tiny ? tiny : d);
        c = 1 + factor / c; c = Math.abs(c) < tiny ? tiny : c;
        found *= c * d;
      }
      if (Math.abs(c * d - 1) < 1e-14) break;
    }
    return front * found / a;
  }
  const twoSided = (t, degrees) => beta(degrees / (degrees + t * t), degrees / 2, 0.5);
  function quantile(level, degrees) {  // two-sided: |t| is below it with chance `level`
    let low = 0, high = 1;
    while (twoSided(high, degrees) > 1 - level) high *= 2;
    for (let i = 0; i < 80; i++) {
      const middle = (low + high) / 2;
      if (twoSided(middle, degrees) > 1 - level) low = middle; else high = middle;
    }
    return (low + high) / 2;
  }
  const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
  function deviation(values) {
    if (values.length < 2) return null;
    const middle = mean(values);
    return Math.sqrt(values.reduce((a, b) => a + (b - middle) ** 2, 0) / (values.length - 1));
  }
  function paired(differences) {  // null for a single pair
    if (differences.length < 2) return null;
    const middle = mean(differences), error = deviation(differences) / Math.sqrt(differences.length), degrees = differences.length - 1;
    if (error === 0) return { difference: middle, low: middle, high: middle, p: middle ? 0 : 1, pairs: differences.length };
    const half = quantile(0.95, degrees) * error;
    return { difference: middle, low: middle - half, high: middle + half, p: twoSided(middle / error, degrees), pairs: differences.length };
  }
  return { mean, deviation, paired, twoSided, quantile };
})();
