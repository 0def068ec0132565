"""Coverage and interval score of half-widths at other levels, and at levels by inner folds."""
import pandas as pd,numpy as np
from pinn.training.data.silicon import read_silicon
from pinn.coefficients import interval_fit as F, intervals as I
p=pd.read_csv('checkpoints/pinn.predictions.csv'); p=p[p.method=='network']
s=read_silicon()[0][['row_id','model','gpu','concurrency','prompt_tokens','output_tokens']]
e=p.merge(s,on='row_id')
e['shape']=e.model; e['group']=e.model+' on '+e.gpu
for m in ('tpot','ttft'): e[m]=np.log(e[f'{m}_measured_s']/e[f'{m}_s'])
e['e2e']=0.0; e['ttft_share']=0.1
for g in F.GAINS: e[g]=1.0
def K(part): return part.groupby(['shape','gpu']).ngroups
base=I.weighted_quantile
def run(name,fit):
    F._fit=fit
    rows=[]
    out=[]
    for left,rest,test in F.left_out_parts(e):
        h=F.half_widths(F.fit_half_widths(rest,.9),test)
        for m in ('tpot','ttft'):
            out.append(test[['split','model','gpu']].assign(left=left,metric=m,half=h[m],err=test[m].abs()))
    o=pd.concat(out); o['cov']=o.err<=o.half
    # interval score in log units, alpha .1, each (model,gpu) pair once
    o['score']=2*o.half+2/.1*np.maximum(o.err-o.half,0)
    res=[]
    for (sp,m),part in o.groupby(['split','metric']):
        sc=part.groupby(['model','gpu'])['score'].mean().mean()
        cv=part.groupby('model')['cov'].mean()
        lo={**{k[:14]:round(v,2) for k,v in cv.items() if v<.8},**{k:round(v,2) for k,v in part.groupby('gpu')['cov'].mean().items() if v<.8}}
        res.append(f"{sp[10:15]} {m}: score {sc:.3f} cov {cv.mean():.3f} width {part.groupby('model')['half'].median().mean()*2:.2f} low {lo}")
    print(name); [print('   ',r) for r in res]
def at(level_of):
    def fit(errors,metric,level):
        q={str(sp):base(part[metric].abs().to_numpy(),F.row_weights(part),level_of(part,level)) for sp,part in errors.groupby('split')}
        w=max(q.values()); ofm=[h for k,h in q.items() if F.left_out_column(k)!='gpu']
        return I.HalfWidth(max(ofm,default=w),w)
    return fit
for l in (.88,.9,.92,.93,.94,.95,.96,.97): run(f'level {l}',at(lambda p,_:l))
run('(K+1)/K pairs',at(lambda p,l:min(l*(K(p)+1)/K(p),1)))
def byunit(part,l):
    k=part['shape'].nunique() if F.left_out_column(part.split.iloc[0])!='gpu' else part['gpu'].nunique()
    return min(l*(k+1)/k,1)
run('(K+1)/K units',at(byunit))
print('=== calibrated level')
def nest(part,metric,level,col,grid):
    units=part[col].unique()
    for l in grid:
        c=[]
        for u in units:
            rest,t=part[part[col]!=u],part[part[col]==u]
            if not len(rest): return 1.0
            h=base(rest[metric].abs().to_numpy(),F.row_weights(rest),l)
            w=F.row_weights(t); c.append(np.average(t[metric].abs().to_numpy()<=h,weights=w))
        if np.mean(c)>=level: return l
    return grid[-1]
for step in (.01,.005):
    def fit(errors,metric,level):
        q={}
        for sp,part in errors.groupby('split'):
            col=F.left_out_column(str(sp)) or 'shape'
            l=nest(part,metric,level,col,np.arange(.9,.9901,step))
            q[str(sp)]=base(part[metric].abs().to_numpy(),F.row_weights(part),l)
        w=max(q.values()); ofm=[h for k,h in q.items() if F.left_out_column(k)!='gpu']
        return I.HalfWidth(max(ofm,default=w),w)
    run(f'nested level {step}',fit)
    print(fit(e,'tpot',.9),fit(e,'ttft',.9))
def fitp(errors,metric,level):
    "each unit's own quantile, pooled by unit (every unit once), jackknife"
    q={}
    for sp,part in errors.groupby('split'):
        col=F.left_out_column(str(sp)) or 'shape'
        l=nest(part.assign(**{'pair':part['shape']+part['gpu']}),metric,level,'pair',np.arange(.9,.9901,.01))
        q[str(sp)]=base(part[metric].abs().to_numpy(),F.row_weights(part),l)
    w=max(q.values()); ofm=[h for k,h in q.items() if F.left_out_column(k)!='gpu']
    return I.HalfWidth(max(ofm,default=w),w)
run('nested by pair',fitp)
